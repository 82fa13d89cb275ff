"""An extra backend beside a target: it gets its ops undecomposed and with their Q/DQ, whatever the target does."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.backends import registry
from ingot.backends.base import Backend, owning
from ingot.lower.opaque_ops import is_opaque, opaque_ops
from tests.support.sharpen_backend import IMAGES, SEEN, Sharpened, run, takes


@pytest.fixture(scope="module")
def partitioner() -> Any:
    return takes()


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    SEEN.clear()
    yield
    registry._registered.clear()


def own(name: str, op: str, partitioner: Any, **how: Any) -> None:
    ability = owning(op, precisions=("float", "int8"))
    short = op.rpartition("::")[2]
    registry.register_backend(Backend(name, "TestBackend", ability, lambda: partitioner(short), run, **how))


class Activated(Sharpened):
    """gelu: every target decomposes it or takes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(nn.functional.gelu(self.one(x)))


def cast(net: nn.Module, target: str, beside: str) -> ingot.Casting:
    recipe: dict[str, Any] = {"extra_backends": [beside]}
    if target == "vgf":
        recipe["options"] = {"run_on": "reference-model"}
    return ingot.cast(net.eval(), IMAGES[0], target=target, calibration=IMAGES, recipe=recipe)


TARGETS = {"xnnpack": "XnnpackBackend", "vgf": "VgfBackend", "ethos-u55-128": "EthosUBackend"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["ingot_test_backends::sharpen", "aten::gelu"])
def test_an_op_of_an_extra_backend(target: str, op: str, partitioner: Any) -> None:
    """Undecomposed and in int8, between delegates of the target."""
    own("mine", op, partitioner)
    casting = cast(Sharpened() if "sharpen" in op else Activated(), target, "mine")
    assert [d.backend for d in casting.delegates] == [TARGETS[target], "TestBackend", TARGETS[target]]
    assert casting.host_ops == ()
    assert [name for name, _ in SEEN[0]] == ["dequantize_per_tensor", op.rpartition("::")[2], "quantize_per_tensor"]
    assert [i.dtype for i in (*casting.delegates[1].inputs, *casting.delegates[1].outputs)] == ["int8", "int8"]
    assert casting.check.outputs[0].sqnr_db > 30
    assert casting.check.outputs[0].faithful_db > 60


def test_a_backend_that_does_not_take_what_it_owns(partitioner: Any) -> None:
    """The op is a host op with that reason."""
    ability = owning("aten::gelu")
    registry.register_backend(Backend("idle", "TestBackend", ability, lambda: partitioner("nothing"), run))
    casting = cast(Activated(), "xnnpack", "idle")
    (gelu,) = [o for o in casting.host_ops if o.op == "gelu.default"]
    assert gelu.reason == "idle owns it, and its partitioner refused it"
    assert "test_backends.py" in gelu.source


def test_an_owned_op_may_read_an_element_of_a_tuple() -> None:
    """A getitem has no schema, and yet is no size."""

    def parts(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(torch.topk(x, 2)[0])

    x = torch.randn(3, 5)
    module = torch.export.export(_Call(parts), (x,)).module(check_guards=False)
    with opaque_ops() as close:
        close(module, lambda n: "gelu" in str(n.target))
        assert any(map(is_opaque, module.graph.nodes))
        torch.testing.assert_close(module(x), parts(x))


class _Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_a_backend_from_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("packed", "ingot.backends.sampler.backend:SAMPLER", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.GROUP else [])
    assert registry.find_backends(["packed"])[0].backend_id == "IngotSampler"


def test_an_entry_point_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("broken", "no.such.module:THING", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(ingot.IngotError, match=r"broken.*No module"):
        registry.find_backends(["broken"])
    assert registry.find_backends(["sampler"])  # others are not its business
