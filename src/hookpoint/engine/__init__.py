"""The Runner: training steps with PyTorch."""
