"""The engine's Runner, which trains, validates and predicts with PyTorch models."""
