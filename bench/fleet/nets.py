"""Twelve small nets, as a fleet file names them. This file is copied beside it and imports torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...], list[tuple[Tensor, ...]]]


def _built(net: nn.Module, *shape: int) -> Built:
    generator = torch.Generator().manual_seed(1)
    batches: list[tuple[Tensor, ...]] = [(torch.randn(shape, generator=generator),) for _ in range(20)]
    return net.eval(), batches[0], batches


def _image_net(*layers: nn.Module) -> Built:
    return _built(nn.Sequential(*layers), 1, 3, 24, 24)


class Residual(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def _seeded() -> None:
    torch.manual_seed(0)


def mlp() -> Built:
    _seeded()
    return _built(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)), 4, 16)


def convolution() -> Built:
    _seeded()
    return _image_net(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def depthwise() -> Built:
    _seeded()
    return _image_net(nn.Conv2d(3, 16, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, groups=16), nn.ReLU6(), nn.Conv2d(16, 8, 1))


def residual() -> Built:
    _seeded()
    block = Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))
    return _image_net(nn.Conv2d(3, 8, 3), block, nn.ReLU(), nn.Conv2d(8, 4, 1))


def pooled() -> Built:
    _seeded()
    return _image_net(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Hardswish(), nn.AvgPool2d(2), nn.Conv2d(8, 4, 1))


def normalized() -> Built:
    _seeded()
    return _image_net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 3))


def upsampled() -> Built:
    _seeded()
    return _image_net(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(3, 3, 3, padding=1), nn.Sigmoid())


def transposed() -> Built:
    _seeded()
    return _image_net(nn.Conv2d(3, 8, 3, stride=2), nn.LeakyReLU(), nn.ConvTranspose2d(8, 3, 2, stride=2))


def gelu() -> Built:
    _seeded()
    return _built(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16), nn.Tanh()), 2, 32)


def layer_norm() -> Built:
    _seeded()
    return _built(nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)), 2, 32)


def softmax() -> Built:
    _seeded()
    return _built(nn.Sequential(nn.Linear(32, 16), nn.Softmax(-1), nn.Linear(16, 8)), 2, 32)


def temporal() -> Built:
    _seeded()
    return _built(nn.Sequential(nn.Conv1d(8, 16, 3), nn.ReLU(), nn.Conv1d(16, 4, 3)), 1, 8, 32)


NETS = (
    mlp, convolution, depthwise, residual, pooled, normalized, upsampled, transposed, gelu, layer_norm, softmax,
    temporal,
)  # fmt: skip
