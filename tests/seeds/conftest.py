"""Fixtures for the tests of other projects' callbacks: images of digits, and a small network that classifies them."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def digits():
    """Images of 8 by 8 pixels, and their labels."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)


@pytest.fixture
def network():
    """Return a factory for a digit classifier with the same weights every time, and its optimizer."""

    def make(lr=0.1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    return make
