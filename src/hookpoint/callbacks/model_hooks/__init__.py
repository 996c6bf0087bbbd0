"""Hooks on modules and parameters: activations, gradients, features."""
