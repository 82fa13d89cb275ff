"""Architectures that no package at hand offers: U-Net, a YOLO-like detector, recurrent nets, EfficientNet-Lite0."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, act: type[nn.Module] = nn.SiLU
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class UNet(nn.Module):
    """Four levels, skips by concatenation, transposed convolutions upwards."""

    def __init__(self, width: int = 16, levels: int = 4, classes: int = 4):
        super().__init__()
        sizes = [width << i for i in range(levels)]
        pairs = list(zip([3, *sizes[:-1]], sizes, strict=True))
        self.down = nn.ModuleList(self._double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * s, s, 2, 2) for s in reversed(sizes[:-1]))
        self.merge = nn.ModuleList(self._double(2 * s, s) for s in reversed(sizes[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(conv_bn(inputs, outputs, act=nn.ReLU), conv_bn(outputs, outputs, act=nn.ReLU))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips[:-1]), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


class CSP(nn.Module):
    """YOLO's split-and-gather block: chunk, a chain of residual convolutions, everything concatenated."""

    def __init__(self, inputs: int, outputs: int, depth: int = 1):
        super().__init__()
        self.width = outputs // 2
        self.first = conv_bn(inputs, outputs, 1)
        self.chain = nn.ModuleList(conv_bn(self.width, self.width) for _ in range(depth))
        self.last = conv_bn(self.width * (2 + depth), outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for conv in self.chain:
            parts.append(parts[-1] + conv(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """Backbone, top-down pyramid, per-level heads; boxes in pixels and scores in 0..1 leave as one tensor."""

    STRIDES = (8, 16, 32)

    def __init__(self, width: int = 16, classes: int = 20):
        super().__init__()
        w = width
        self.stem = nn.Sequential(conv_bn(3, w, 3, 2), conv_bn(w, 2 * w, 3, 2), CSP(2 * w, 2 * w))
        self.stages = nn.ModuleList(
            nn.Sequential(conv_bn(i * w, 2 * i * w, 3, 2), CSP(2 * i * w, 2 * i * w)) for i in (2, 4, 8)
        )
        self.up16, self.up8 = CSP(24 * w, 8 * w), CSP(12 * w, 4 * w)
        channels = (4 * w, 8 * w, 16 * w)
        self.boxes = nn.ModuleList(nn.Sequential(conv_bn(c, 2 * w), nn.Conv2d(2 * w, 4, 1)) for c in channels)
        self.scores = nn.ModuleList(nn.Sequential(conv_bn(c, 4 * w), nn.Conv2d(4 * w, classes, 1)) for c in channels)

    def forward(self, x: Tensor) -> Tensor:
        c8, c16, c32 = self._backbone(x)
        p16 = self.up16(torch.cat([F.interpolate(c32, scale_factor=2.0, mode="nearest"), c16], 1))
        p8 = self.up8(torch.cat([F.interpolate(p16, scale_factor=2.0, mode="nearest"), c8], 1))
        levels = [self._level(i, p) for i, p in enumerate((p8, p16, c32))]
        return torch.cat(levels, 2)

    def _backbone(self, x: Tensor) -> list[Tensor]:
        features, x = [], self.stem(x)
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features

    def _level(self, index: int, p: Tensor) -> Tensor:
        near, far = F.softplus(self.boxes[index](p)).flatten(2).chunk(2, 1)
        centres = self._centres(p.shape[2], p.shape[3], p)
        boxes = torch.cat([centres - near, centres + far], 1) * self.STRIDES[index]
        return torch.cat([boxes, self.scores[index](p).flatten(2).sigmoid()], 1)

    @staticmethod
    def _centres(height: int, width: int, like: Tensor) -> Tensor:
        ys = torch.arange(height, dtype=like.dtype, device=like.device) + 0.5
        xs = torch.arange(width, dtype=like.dtype, device=like.device) + 0.5
        grid_y, grid_x = torch.meshgrid(ys, xs, indexing="ij")
        return torch.stack([grid_x, grid_y]).flatten(1).unsqueeze(0)


def boxes_and_scores(outputs: list[Tensor]) -> list[Tensor]:
    """Judge the two halves of a detector's output apart: next to pixel coordinates, ruined scores would not show."""
    return [outputs[0][:, :4], outputs[0][:, 4:]]


class Recurrent(nn.Module):
    """GRU or LSTM over a sequence, a linear head on every step."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], features: int = 40, hidden: int = 128, classes: int = 12):
        super().__init__()
        self.rnn = kind(features, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class DigitsCNN(nn.Module):
    """Small enough to train in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(1, 16, act=nn.ReLU), conv_bn(16, 32, stride=2, act=nn.ReLU))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class SameConv(nn.Conv2d):
    """TensorFlow's SAME padding, uneven where the stride is 2; the pad is fixed by the training resolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        total = kernel - stride
        self.pads = (total // 2, total - total // 2) * 2

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, self.pads) if any(self.pads) else x)


class LiteBlock(nn.Module):
    """Inverted residual; the names are those of the published weights."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int):
        super().__init__()
        wide = inputs * expand
        if expand != 1:
            self._expand_conv, self._bn0 = SameConv(inputs, wide, 1), nn.BatchNorm2d(wide, eps=1e-3)
        self._depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide)
        self._bn1 = nn.BatchNorm2d(wide, eps=1e-3)
        self._project_conv, self._bn2 = SameConv(wide, outputs, 1), nn.BatchNorm2d(outputs, eps=1e-3)
        self.expands, self.skips = expand != 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.skips else y


class EfficientNetLite0(nn.Module):
    # repeats, kernel, stride, expand, inputs, outputs
    STAGES = (
        (1, 3, 1, 1, 32, 16),
        (2, 3, 2, 6, 16, 24),
        (2, 5, 2, 6, 24, 40),
        (3, 3, 2, 6, 40, 80),
        (3, 5, 1, 6, 80, 112),
        (4, 5, 2, 6, 112, 192),
        (1, 3, 1, 6, 192, 320),
    )

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SameConv(3, 32, 3, 2), nn.BatchNorm2d(32, eps=1e-3)
        self._blocks = nn.ModuleList(
            LiteBlock(inputs if i == 0 else outputs, outputs, kernel, stride if i == 0 else 1, expand)
            for repeats, kernel, stride, expand, inputs, outputs in self.STAGES
            for i in range(repeats)
        )
        self._conv_head, self._bn1 = SameConv(320, 1280, 1), nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]
