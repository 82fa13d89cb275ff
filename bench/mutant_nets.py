"""Small nets of every kind of output, cast for real: what bench.mutants damages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import ingot

Batches = list[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Subject:
    """A casting, the batches it is verified on, and the channel axis of each of its outputs."""

    casting: ingot.Casting
    batches: Batches
    axes: tuple[int, ...]


class Backbone(nn.Module):
    """Two convolutions, and a head of your own."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 24, 3, 2, 1)
        self.head = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self, self.two(self.one(x).relu()).relu())


def _joined(s: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([s.boxes(x) * 640, s.scores(x).sigmoid()], 1).flatten(2).transpose(1, 2)


def _detector() -> nn.Module:
    return Backbone(_joined, boxes=nn.Conv2d(24, 4, 1), scores=nn.Conv2d(24, 6, 1))


def _drawn_to_one_conv(s: Any, x: torch.Tensor) -> torch.Tensor:
    """One convolution makes all; each part has a unit of its own."""
    y = s.both(x).flatten(2)
    return torch.cat([(y[:, :4] * 2).exp() * 30, y[:, 4:].sigmoid()], 1)


def _yolo() -> nn.Module:
    return Backbone(_drawn_to_one_conv, both=nn.Conv2d(24, 9, 1))


def _classifier(classes: int = 100) -> nn.Module:
    return Backbone(lambda s, x: s.fc(x.mean((2, 3))), fc=nn.Linear(24, classes))


def _tokens() -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 3, 48, activation="gelu", batch_first=True, norm_first=True)
    return Backbone(lambda s, x: s.out(s.layer(x.flatten(2).transpose(1, 2))), layer=layer, out=nn.Linear(24, 12))


def _deep(blocks: int = 12, classes: int = 100) -> nn.Module:
    """Deep enough for ties to matter: artefact and graph are two roundings of one net."""
    made = [
        nn.TransformerEncoderLayer(24, 3, 48, activation="gelu", batch_first=True, norm_first=True)
        for _ in range(blocks)
    ]
    tokens = nn.Sequential(*made)
    return Backbone(
        lambda s, x: s.out(s.tokens(x.flatten(2).transpose(1, 2)).mean(1)), tokens=tokens, out=nn.Linear(24, classes)
    )


def _segmentation() -> nn.Module:
    up = nn.Upsample(scale_factor=4, mode="bilinear")
    return Backbone(lambda s, x: s.up(s.classes(x)), classes=nn.Conv2d(24, 5, 1), up=up)


def _several() -> nn.Module:
    parts = {"classes": nn.Conv2d(24, 5, 1), "fc": nn.Linear(24, 7), "depth": nn.Conv2d(24, 1, 1)}
    return Backbone(lambda s, x: (s.classes(x), s.fc(x.mean((2, 3))), s.depth(x).relu() * 50), **parts)


def _integers() -> nn.Module:
    def forward(s: Any, x: torch.Tensor) -> Any:
        logits = s.classes(x)
        return logits.argmax(1), logits > 0, logits

    return Backbone(forward, classes=nn.Conv2d(24, 5, 1))


def images(count: int, batch: int = 1, size: int = 32) -> Batches:
    """Smooth fields with some noise."""
    g = torch.Generator().manual_seed(1)
    coarse = torch.randn(count, batch, 3, size // 4, size // 4, generator=g)
    fine = torch.randn(count, batch, 3, size, size, generator=g)
    return [
        (nn.functional.interpolate(c, size=(size, size), mode="bilinear") + 0.2 * f,)
        for c, f in zip(coarse, fine, strict=True)
    ]


def _cast(model: Callable[[], nn.Module], target: str, batches: Batches, axes: tuple[int, ...], **how: Any) -> Subject:
    torch.manual_seed(0)
    net = model().eval()
    return Subject(ingot.cast(net, batches[0], target=target, calibration=batches, **how), batches, axes)


INT16 = {"scopes": [{"op": "*", "precision": "int16"}]}
SUBJECTS: dict[str, Callable[[], Subject]] = {
    "boxes and scores, joined": lambda: _cast(_detector, "xnnpack", images(8), (2,)),
    "boxes and scores of one conv": lambda: _cast(_yolo, "xnnpack", images(8), (1,)),
    "classifier, 8 images": lambda: _cast(_classifier, "xnnpack", images(8), (1,)),
    "classifier, 4 x 16 images": lambda: _cast(_classifier, "xnnpack", images(4, 16), (1,)),
    "tokens [B, T, C]": lambda: _cast(_tokens, "xnnpack", images(8), (2,)),
    "twelve transformer blocks, 4 images": lambda: _cast(_deep, "xnnpack", images(4), (1,)),
    "segmentation, upsampled": lambda: _cast(_segmentation, "xnnpack", images(6), (1,)),
    "three outputs": lambda: _cast(_several, "xnnpack", images(8), (1, 1, 1)),
    "argmax and mask": lambda: _cast(_integers, "xnnpack", images(8), (1, 1, 1)),
    "float": lambda: _cast(_detector, "xnnpack", images(8), (2,), recipe={"quantize": False}),
    "8da4w": lambda: _cast(_linears, "xnnpack", _sentences(), (2,), weights="8da4w"),
    "three outputs on Ethos-U55": lambda: _cast(_several, "ethos-u55-128", images(8), (1, 1, 1)),
    "tokens on Ethos-U55": lambda: _cast(_tokens, "ethos-u55-128", images(8), (2,)),
    "int16 on VGF": lambda: _cast(_several, "vgf", images(6), (1, 1, 1), recipe=INT16),
}


def _linears() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64), nn.SiLU(), nn.Linear(64, 96))


def _sentences() -> Batches:
    return [(torch.randn(1, 10, 64, generator=torch.Generator().manual_seed(i)),) for i in range(6)]
