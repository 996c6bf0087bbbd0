"""The models for the benchmark of the fused step: a small MLP, ResNet-50, and a GPT with 124 million parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def mlp() -> nn.Module:
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(channels, width, 1), nn.ReLU(), *_conv(width, width, 3, stride), nn.ReLU(), *_conv(width, 4 * width, 1)
        )
        is_same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*_conv(channels, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def _conv(channels: int, width: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, size, stride, size // 2, bias=False), nn.BatchNorm2d(width)]


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, 64 << stage, 2 if stage and not block else 1))
                channels = 256 << stage
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int = 50257, length: int = 1024, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, width // 64) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))
        return self.head(x).flatten(0, 1)
