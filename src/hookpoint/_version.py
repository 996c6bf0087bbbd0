"""The package version. The build and `hookpoint.__version__` read it from this module."""

__version__ = "0.1.0"
