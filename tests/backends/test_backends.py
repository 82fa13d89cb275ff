"""A backend of the user's own beside a target: it gets its ops whole, with their roundings, whatever the target does."""

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
from ingot.lower.opaque_ops import closing, is_closed
from tests.support.sharpen_backend import IMAGES, SEEN, Sharpened, run, takes


@pytest.fixture(scope="module")
def partitioner() -> Any:
    return takes()


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    SEEN.clear()
    yield
    registry._added.clear()


def own(name: str, op: str, partitioner: Any, **how: Any) -> None:
    ability = owning(op, precisions=("float", "int8"))
    short = op.rpartition("::")[2]
    registry.register_backend(Backend(name, "TestBackend", ability, lambda: partitioner(short), run, **how))


class Activated(Sharpened):
    """Every target takes gelu apart, or takes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(nn.functional.gelu(self.one(x)))


def cast(net: nn.Module, target: str, beside: str) -> ingot.Casting:
    recipe: dict[str, Any] = {"beside": [beside]}
    if target == "vgf":
        recipe["options"] = {"run_on": "reference-model"}
    return ingot.cast(net.eval(), IMAGES[0], target=target, calibration=IMAGES, recipe=recipe)


TARGETS = {"xnnpack": "XnnpackBackend", "vgf": "VgfBackend", "ethos-u55-128": "EthosUBackend"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["ingot_test_backends::sharpen", "aten::gelu"])
def test_an_op_of_ones_own(target: str, op: str, partitioner: Any) -> None:
    """Whole and on integers, between delegates of the target."""
    own("mine", op, partitioner)
    casting = cast(Sharpened() if "sharpen" in op else Activated(), target, "mine")
    assert [d.backend for d in casting.delegates] == [TARGETS[target], "TestBackend", TARGETS[target]]
    assert casting.host_ops == ()
    assert [name for name, _ in SEEN[0]] == ["dequantize_per_tensor", op.rpartition("::")[2], "quantize_per_tensor"]
    assert [i.dtype for i in (*casting.delegates[1].inputs, *casting.delegates[1].outputs)] == ["int8", "int8"]
    assert casting.check.outputs[0].sqnr_db > 30
    assert casting.check.outputs[0].faithful_db > 60


def test_a_backend_that_does_not_take_what_it_owns(partitioner: Any) -> None:
    """The op stays on the host, and is told."""
    ability = owning("aten::gelu")
    registry.register_backend(Backend("idle", "TestBackend", ability, lambda: partitioner("nothing"), run))
    casting = cast(Activated(), "xnnpack", "idle")
    (gelu,) = [o for o in casting.host_ops if o.op == "gelu.default"]
    assert gelu.reason == "idle owns it, and its partitioner did not take it"
    assert "test_backends.py" in gelu.source


def test_what_is_taken_from_a_tuple_is_a_tensor() -> None:
    """A getitem has no schema, and is no size all the same."""

    def parts(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(torch.topk(x, 2)[0])

    x = torch.randn(3, 5)
    module = torch.export.export(_Call(parts), (x,)).module(check_guards=False)
    with closing() as close:
        close(module, lambda n: "gelu" in str(n.target))
        assert any(map(is_closed, module.graph.nodes))
        torch.testing.assert_close(module(x), parts(x))


class _Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_a_package_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("packed", "ingot.backends.sampler.backend:SAMPLER", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.GROUP else [])
    assert registry.find_backends(["packed"])[0].backend_id == "IngotSampler"


def test_a_package_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("broken", "no.such.module:THING", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(ingot.IngotError, match=r"broken.*No module"):
        registry.find_backends(["broken"])
    assert registry.find_backends(["sampler"])  # others are not its business
