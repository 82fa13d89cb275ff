"""Nets whose artefact is wrong: a kernel of XNNPACK that computes something else, a backend that doubles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from ingot.backends.base import Backend, owning
from ingot.backends.registry import register_backend
from tests.support.sharpen_backend import run as run_sharpen
from tests.support.sharpen_backend import takes

IMAGES = [(torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(i)),) for i in range(4)]


class Net(nn.Module):
    """A chain of convolutions with something in the middle, and a branch around it."""

    def __init__(self, middle: Any, depth: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.middle = middle
        self.before = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1, bias=False) for i in range(depth))
        self.after = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.before:
            x = conv(x).relu()
        x = self.middle(x)
        for conv in self.after:
            x = x + conv(x).relu()
        return x


def _visitors() -> dict[str, Any]:
    """What XNNPACK serializes each op with."""
    from executorch.backends.xnnpack.operators.node_visitor import _node_visitor_dict

    return _node_visitor_dict


@contextmanager
def sigmoid_for_tanh() -> Iterator[None]:
    """XNNPACK computes a sigmoid where the graph has a tanh."""
    visitors = _visitors()
    with patch.dict(visitors, {"aten.tanh.default": visitors["aten.sigmoid.default"]}):
        yield


@contextmanager
def dying_on(op: str, words: str) -> Iterator[None]:
    """XNNPACK's serializer raises at each op of this kind."""

    def dies(*_: Any) -> None:
        raise AssertionError(words)

    with patch.object(_visitors()[op], "define_node", dies):
        yield


def doubled(payload: bytes, batches: list[list[np.ndarray]], outputs: int) -> list[list[np.ndarray]]:
    """A delegate that sharpens twice as much as it should."""
    steps = [
        [name, [2 * n for n in numbers] if name == "sharpen" else numbers] for name, numbers in json.loads(payload)
    ]
    return run_sharpen(json.dumps(steps).encode(), batches, outputs)


def register() -> None:
    ability = owning("ingot_test_backends::sharpen", precisions=("float", "int8"))
    register_backend(Backend("doubling", "TestBackend", ability, lambda: takes()("sharpen"), doubled))


def sharpened(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.ingot_test_backends.sharpen(x, 1.5)


FILE = """
import torch
from tests.support.wrong_kernels import IMAGES, Net

def build():
    return Net({middle}).eval(), IMAGES[0], IMAGES
"""
