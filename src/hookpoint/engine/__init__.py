"""The runner's step on PyTorch."""
