"""After a verb torch, torchao and ExecuTorch hold nothing of its programs."""

from __future__ import annotations

import gc
import linecache
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.core import shape_cache
from ingot.patches import program_caches, strict_exports
from tests.support.requirements import need
from tests.support.wrong_kernels import dying_on, sigmoid_for_tanh

X = torch.linspace(-1, 1, 32).reshape(2, 16)


def cast_linear() -> Any:
    net = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    shapes = {"input": {0: torch.export.Dim("batch", min=1, max=4)}}
    return ingot.cast(net, (X,), target="xnnpack", calibration=[(X,)], dynamic_shapes=shapes)


class Norm(nn.Module):
    """A batch norm that no convolution absorbs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu()


def cast_norm() -> Any:
    return ingot.cast(Norm().eval(), (X,), target="xnnpack", calibration=[(X,)])


def cast_weights() -> Any:
    """Vulkan's passes export patterns."""
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU()).eval()
    return ingot.cast(net, (torch.ones(1, 64),), target=need("vulkan"), weights="4w")


def refuse() -> None:
    """XNNPACK's serializer fails on it."""
    net = nn.Sequential(nn.Linear(16, 8), nn.Hardswish()).eval()
    with dying_on("aten.hardswish.default", "no"), suppress(ingot.IngotError):
        ingot.cast(net, (X,), target="xnnpack", calibration=[(X,)], recipe={"recover": False})


def mismatch() -> None:
    """The artefact is wrong, and is not handed over."""
    net = nn.Sequential(nn.Linear(16, 8), nn.Tanh()).eval()
    with sigmoid_for_tanh(), suppress(ingot.IngotError):
        ingot.cast(net, (X,), target="xnnpack", calibration=[(X,)], recipe={"recover": False})


def tensors() -> int:
    """An error, its frames and their graphs are a cycle with finalizers: the first collection frees only some of it."""
    while gc.collect():
        pass
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


@pytest.fixture
def _no_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pytest keeps what torch logs, which refers to tensors. Torch's trace is not even stopped by logging.disable."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_no_logs")
@pytest.mark.parametrize("cast", [cast_linear, cast_norm, cast_weights, refuse, mismatch])
def test_casts_leave_no_tensors(cast: Callable[[], object]) -> None:
    cast()  # what torch makes once
    before = tensors()
    cast()
    cast()
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


def test_the_last_export_is_found_in_the_tested_versions() -> None:
    found = program_caches._found(program_caches.LAST_EXPORT)
    assert isinstance(found, dict)
    torch.export.export(nn.ReLU(), (X,))
    assert found, "torch keeps the nodes of an export until the next"
    program_caches.release_programs()
    assert not found


@program_caches.releases_programs
def export_strictly() -> None:
    torch.export.export(nn.Linear(16, 8), (X,), strict=True)


def test_a_strict_export_leaves_no_guards_and_no_globals() -> None:
    export_strictly()  # what torch makes once
    before = len(strict_exports.finalizers()), strict_exports.installed_globals()
    export_strictly()
    gc.collect()
    assert (len(strict_exports.finalizers()), strict_exports.installed_globals()) == before


def test_what_is_compiled_in_a_verb_stays_compiled() -> None:
    """A model may be compiled by its first call, which may be a batch of calibration."""
    kept, compiled = object(), list[object]()

    def backend(module: Any, _inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    @torch.compile(backend=backend)
    def double(x: torch.Tensor, other: object) -> torch.Tensor:
        return 2 * x if other is kept else x

    double_in_verb = program_caches.releases_programs(double)
    double_in_verb(X, kept)
    double_in_verb(X, kept)
    assert torch.equal(double(X, kept), 2 * X)
    assert len(compiled) == 1


def test_few_shapes_are_kept_between_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    cast_linear()
    assert FakeTensorMode.cache, "within the limits the next cast finds them"
    monkeypatch.setattr(program_caches, "MOST_FAKE_RESULTS", 10)
    monkeypatch.setattr(shape_cache, "MOST_KEPT", 1)
    cast_linear()
    assert len(FakeTensorMode.cache) <= 10
    assert max(map(len, shape_cache._caches)) == 1
