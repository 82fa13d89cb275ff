"""Real architectures, narrow and for few pixels, with their batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.models import images


def conv_norm(
    a: int, b: int, size: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU6
) -> nn.Sequential:
    conv = nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b), act())


class Inverted(nn.Module):
    """MobileNetV2's block; with a gate and hard swish it is V3's."""

    def __init__(self, width: int, gate: bool) -> None:
        super().__init__()
        act = nn.Hardswish if gate else nn.ReLU6
        self.up, self.mid = (
            conv_norm(width, 3 * width, 1, act=act),
            conv_norm(3 * width, 3 * width, groups=3 * width, act=act),
        )
        self.down = conv_norm(3 * width, width, 1, act=nn.Identity)
        squeeze = [
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(3 * width, 8, 1),
            nn.ReLU(),
            nn.Conv2d(8, 3 * width, 1),
            nn.Hardsigmoid(),
        ]
        self.gate = nn.Sequential(*squeeze) if gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mid(self.up(x))
        return x + self.down(y if self.gate is None else y * self.gate(y))


class Shuffle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            conv_norm(half, half, 1, act=nn.ReLU), conv_norm(half, half, groups=half, act=nn.Identity)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, changed = x.chunk(2, 1)
        both = torch.cat([kept, self.branch(changed)], 1)
        n, c, h, w = both.shape
        return both.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = conv_norm(width, width, act=nn.ReLU), conv_norm(width, width, act=nn.Identity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.two(self.one(x)))


class Classifier(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = conv_norm(3, 16, stride=2), nn.Sequential(*blocks), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = conv_norm(3, 8, act=nn.ReLU), conv_norm(8, 16, stride=2, act=nn.ReLU)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.deep(skip))], 1))


class Yolo(nn.Module):
    """Boxes in pixels and scores of two levels, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv_norm(3, 16, stride=2, act=nn.SiLU), conv_norm(16, 16, stride=2, act=nn.SiLU)
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = [self.stem(x), self.down(self.stem(x))]
        boxes = torch.cat([self.boxes(y).flatten(2) for y in levels], 2).sigmoid() * 64
        return boxes, torch.cat([self.scores(y).flatten(2) for y in levels], 2).sigmoid()


class Transformer(nn.Module):
    """A small DeiT: class token, one block, head on the token."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, stride=4), nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.3)
        layer = nn.TransformerEncoderLayer(width, 3, 2 * width, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.places
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y)[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


Batches = list[tuple[torch.Tensor, ...]]
IMAGES: Batches = [(x,) for x in images(n=6)]


SEQUENCES: Batches = [(torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(i)),) for i in range(6)]


NETS: dict[str, tuple[Callable[[], nn.Module], Batches, float]] = {
    "DeiT": (Transformer, IMAGES, 20),
    "MobileNetV2": (lambda: Classifier(Inverted(16, False), Inverted(16, False)), IMAGES, 25),
    "MobileNetV3": (lambda: Classifier(Inverted(16, True), Inverted(16, True)), IMAGES, 20),
    "ShuffleNetV2": (lambda: Classifier(Shuffle(16), Shuffle(16)), IMAGES, 25),
    "ResNet": (lambda: Classifier(Residual(16), Residual(16)), IMAGES, 25),
    "U-Net": (UNet, IMAGES, 30),
    "YOLO": (Yolo, IMAGES, 25),
    "GRU": (Recurrent, SEQUENCES, 30),
}
