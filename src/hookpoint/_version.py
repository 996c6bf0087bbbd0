"""The version, read here by the build and by `hookpoint.__version__`."""

__version__ = "0.1.0"
