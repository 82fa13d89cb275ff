"""Small real architectures that stock flows die on or get wrong; each returns (model, batches)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

Case = tuple[nn.Module, list[tuple[torch.Tensor, ...]]]


def images(n: int = 4, channels: int = 3, size: int = 16, scale: float = 1.0, seed: int = 0) -> list[torch.Tensor]:
    """Smooth random fields: neighbouring pixels agree, as in photographs."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 1, channels, max(size // 4, 1), max(size // 4, 1), generator=g)
    fine = torch.randn(n, 1, channels, size, size, generator=g)
    return [
        F.interpolate(c, size=(size, size), mode="bilinear") * scale + 0.2 * f
        for c, f in zip(coarse, fine, strict=True)
    ]


def settled(model: nn.Module, batches: list[tuple[torch.Tensor, ...]]) -> nn.Module:
    """Batch norms with the statistics of the data, then eval mode."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    with torch.no_grad():
        for batch in batches if norms else ():
            model.train()(*batch)
    return model.eval()


class ConvTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.conv(x).relu(), self.conv(y * 20).relu()], 1))


class LinearTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(self.lin(x).relu() * 30.0)


class SharedHead(nn.Module):
    """A detection head over three pyramid levels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.down = nn.ModuleList([nn.Conv2d(16, 16, 3, 2, 1) for _ in range(2)])
        self.tower = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(16, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = [self.stem(x).relu()]
        for down in self.down:
            levels.append(down(levels[-1]).relu() * 2)
        towers = [self.tower(f) for f in levels]
        boxes = torch.cat([self.boxes(t).flatten(2) for t in towers], 2)
        return boxes, torch.cat([self.scores(t).flatten(2) for t in towers], 2).sigmoid()


class SliceAssign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        z = torch.zeros(1, 8, 16, 16)
        z[:, 2:5] = y[:, :3]
        z[:, :2] += y[:, 4:]
        return z.relu()


class OneChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class ToChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x).to(memory_format=torch.channels_last)
        return (self.b(y).relu() + y).contiguous()


class GroupedTransposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 12, 4, 2, 1, groups=4, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class IndexArithmetic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lin = nn.Embedding(64, 16), nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        positions = (torch.arange(tokens.shape[1]) * 2 + 1) % 64
        return self.lin(self.table((tokens + 3) % 64) + self.table(positions) + x)


class Cache(nn.Module):
    """One step of attention over a cache that starts with something in it."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("keys", torch.randn(8, 16))
        self.register_buffer("values", torch.randn(8, 16))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(0, at, k)
        self.values.index_copy_(0, at, v)
        scores = (q @ self.keys.t()) / 4.0
        return self.out(scores.softmax(-1) @ self.values)


class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.a, self.b = norm(nn.Conv1d(4, 16, 3, padding=1)), norm(nn.Conv1d(16, 4, 3, padding=2, dilation=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


class LRN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.LocalResponseNorm(5, alpha=0.1), nn.Conv2d(16, 8, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class LearnedQuery(nn.Module):
    """Cross-attention from queries that are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 4, 32))
        self.attend, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)
        self.proj = nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.proj(x)
        return self.norm(self.query + self.attend(self.query.expand(x.shape[0], -1, -1), tokens, tokens)[0])


class FullPad(nn.Module):
    """A model that pads with a factory and its keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        pad = torch.full((x.shape[0], 8, 2, 16), 0.5, dtype=x.dtype, device=x.device)
        return self.head(torch.cat([pad, y, pad], 2))


class TokenPath(nn.Module):
    """The front of a ViT: class token, expand, cat, position."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 32) * 0.5)
        self.position = nn.Parameter(torch.randn(1, 17, 32) * 0.2)
        self.mix = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        return self.mix(tokens + self.position)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.moveaxis(self.depth(x), 1, -1)
        y = self.gamma * self.down(F.gelu(self.up(self.norm(y))))
        return x + torch.moveaxis(y, -1, 1)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 16, 2, 2), nn.Sequential(*[ConvNeXtBlock(16) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.stem(x))


def case(name: str) -> Case:
    torch.manual_seed(7)
    model, batches = CASES[name]()
    return settled(model, batches), batches


def _image_case(kind: type[nn.Module], channels: int = 3) -> Case:
    return kind(), [(x,) for x in images(channels=channels)]


def _vectors(*shape: int, scale: float = 1.0) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(*shape) * scale,) for _ in range(4)]


def _one_channel() -> Case:
    return OneChannel(), [(x.to(memory_format=torch.channels_last),) for x in images(channels=1)]


def _tokens() -> Case:
    return IndexArithmetic(), [(torch.randint(0, 64, (1, 6)), torch.randn(1, 6, 16)) for _ in range(4)]


def _cache() -> Case:
    return Cache(), [(torch.randn(1, 16), torch.tensor([i % 8])) for i in range(4)]


CASES: dict[str, Callable[[], Case]] = {
    "conv used twice": lambda: (ConvTwice(), list(zip(images(), images(seed=1), strict=True))),
    "linear with bias used twice": lambda: (LinearTwice(), _vectors(4, 16)),
    "head shared over three levels": lambda: _image_case(SharedHead),
    "slice assignment": lambda: _image_case(SliceAssign),
    "channels-last input with one channel": _one_channel,
    "channels-last in mid-graph": lambda: _image_case(ToChannelsLast),
    "grouped transposed conv and batch norm": lambda: _image_case(GroupedTransposed),
    "integer scalars in index arithmetic": _tokens,
    "cache that starts non-zero": _cache,
    "weight norm": lambda: (WeightNorm(), _vectors(1, 4, 32)),
    "local response norm": lambda: _image_case(LRN),
    "learned query": lambda: (LearnedQuery(), _vectors(1, 12, 8, scale=math.sqrt(2))),
    "factory in a padded cat": lambda: _image_case(FullPad),
    "class token": lambda: _image_case(TokenPath),
    "three ConvNeXt blocks": lambda: _image_case(ConvNeXt),
}

WHOLE = ("factory in a padded cat", "class token", "three ConvNeXt blocks")
