"""After a verb torch, torchao and ExecuTorch hold nothing of its programs."""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.patches import program_caches

X = torch.linspace(-1, 1, 32).reshape(2, 16)


def cast_linear() -> Any:
    net = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    shapes = {"input": {0: torch.export.Dim("batch", min=1, max=4)}}
    return ingot.cast(net, (X,), target="xnnpack", calibration=[(X,)], dynamic_shapes=shapes)


def cast_refused() -> Any:
    net = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    with pytest.raises(ingot.IngotError):
        ingot.cast(net, (X,), target="xnnpack", calibration=[(X,)], recipe={"min_sqnr_db": 190.0})


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


@pytest.mark.parametrize("cast", [cast_linear, cast_refused])
def test_casts_leave_no_tensors(cast: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    cast()  # what torch makes once
    caplog.clear()  # what torch logs refers to tensors
    before = tensors()
    cast()
    cast()
    caplog.clear()
    assert tensors() == before


def test_a_model_is_freed_with_its_casting() -> None:
    casting = cast_linear()
    kept = weakref.ref(casting.needed_evidence.quantized)
    del casting
    gc.collect()
    assert kept() is None


def test_a_cast_leaves_no_generated_source() -> None:
    cast_linear()
    before = len(linecache.cache), len(torch.fx.graph_module._loader.eval_cache)
    cast_linear()
    assert (len(linecache.cache), len(torch.fx.graph_module._loader.eval_cache)) == before


@pytest.mark.parametrize("name", [*program_caches.CACHED, program_caches.SHAPE_ENV])
def test_the_caches_exist_in_the_tested_versions(name: str) -> None:
    found: Any = program_caches._found(name)
    parts = vars(found).values() if isinstance(found, type) else [found]
    assert any(hasattr(part, "cache_clear") for part in parts)
