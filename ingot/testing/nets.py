"""The nets of the conformance cases. Each shows one thing that a backend can get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ROWS, IMAGE = (2, 16), (1, 4, 8, 8)
FAR_APART = 100.0  # ratio of two ranges: a backend that joins them without a requantize is wrong by that


@dataclass(frozen=True)
class ConformanceCase:
    """One net: `quick` cases are enough for every change of a backend, the others for a release."""

    category: str
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = ROWS
    quick: bool = False


class Apply(nn.Module):
    """A function between two linear layers, or after one."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 16, out: int | None = None) -> None:
        super().__init__()
        self.function, self.before = function, nn.Linear(16, width)
        self.after = nn.Linear(out, 8) if out is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))


class Branches(nn.Module):
    """Two branches whose ranges are far apart, joined."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.join, self.small, self.large = join, nn.Linear(16, 16), nn.Linear(16, 16)
        with torch.no_grad():
            self.large.weight.mul_(FAR_APART)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.small(x), self.large(x))


class Convolution(nn.Module):
    """A convolution, and a function after it."""

    def __init__(self, function: Callable[[Tensor], Tensor] | None = None, groups: int = 1) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(4, 8, 3, padding=1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y if self.function is None else self.function(y)


class SmallOutput(nn.Module):
    """Its outputs are inside -1 .. 1, so that they fit a format of that range."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        with torch.no_grad():
            self.linear.weight.mul_(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Mixed(nn.Module):
    """Ops that some backends lack, between ops that all have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.atan(self.second(torch.sigmoid(self.first(x)))))


def _relu6(x: Tensor) -> Tensor:
    return torch.clamp(4 * x, 0.0, 6.0)


NUMERICS, FUSIONS, MOVES, JOINS = "numerics", "fusions", "moves", "joins"
CASES = (
    ConformanceCase(NUMERICS, "linear", lambda: Apply(nn.Identity(), 8), quick=True),
    ConformanceCase(NUMERICS, "long sums", lambda: nn.Linear(512, 4), (2, 512), quick=True),
    ConformanceCase(NUMERICS, "conv2d", Convolution, IMAGE, quick=True),
    ConformanceCase(NUMERICS, "depthwise conv2d", lambda: Convolution(groups=4), IMAGE),
    ConformanceCase(NUMERICS, "sigmoid", lambda: Apply(torch.sigmoid), quick=True),
    ConformanceCase(NUMERICS, "softmax", lambda: Apply(lambda x: torch.softmax(x, -1))),
    ConformanceCase(NUMERICS, "mul", lambda: Branches(torch.mul)),
    ConformanceCase(NUMERICS, "average pool", lambda: Convolution(nn.AvgPool2d(2)), IMAGE),
    ConformanceCase(FUSIONS, "linear, relu", lambda: Apply(torch.relu, 16, 16), quick=True),
    ConformanceCase(FUSIONS, "conv2d, relu", lambda: Convolution(torch.relu), IMAGE, quick=True),
    ConformanceCase(FUSIONS, "conv2d, clamp", lambda: Convolution(_relu6), IMAGE),
    ConformanceCase(FUSIONS, "add, relu", lambda: Apply(lambda x: torch.relu(x + x), 16, 16)),
    ConformanceCase(MOVES, "reshape", lambda: Apply(lambda x: x.reshape(4, 8), 16, 8), quick=True),
    ConformanceCase(MOVES, "transpose", lambda: Apply(lambda x: x.reshape(2, 4, 4).transpose(1, 2), 16, 4), quick=True),
    ConformanceCase(MOVES, "slice", lambda: Apply(lambda x: x[:, 3:11], 16, 8)),
    ConformanceCase(JOINS, "add", lambda: Branches(torch.add), quick=True),
    ConformanceCase(JOINS, "cat", lambda: Branches(lambda a, b: torch.cat([a, b], -1)), quick=True),
)
