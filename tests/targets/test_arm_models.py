"""Real architectures, narrow and at few pixels, on Arm's targets: one delegate each, executed, faithful.

The full ones are in the bench (bench/arm.py), beside the stock flow.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn

import ingot
from ingot.config.recipe import Recipe
from ingot.core.fx import constant_of, is_float, output_nodes
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from ingot.verify.check import run_artefact, run_quantized
from ingot.verify.reference.interpreter import DoubleInterpreter
from tests.support.architectures import NETS, UNet
from tests.support.arm import ARM, HOW
from tests.support.models import settled
from tests.support.requirements import need

pytestmark = pytest.mark.parts


LONG = {"MobileNetV2", "ResNet"}  # MobileNetV3 has the same ops
SOME_LONG = [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in NETS]


@pytest.mark.parametrize("name", SOME_LONG)
def test_one_delegate_executed(name: str) -> None:
    """Calibrated once for all three targets."""
    build, batches, least = NETS[name]
    torch.manual_seed(0)
    targets = [need(t) for t in ARM]
    castings = ingot.cast(
        settled(build(), batches), batches[0], target=targets, calibration=batches, recipe={"verify_batches": 2}
    )
    for target, casting in castings.items():
        assert (len(casting.delegates), casting.host_ops) == (1, ()), target
        assert HOW[target] in casting.check.executed_on
        assert min(o.sqnr_db for o in casting.check.outputs) >= least, target
        assert min(o.faithful_db for o in casting.check.outputs) >= 60, target


INT16 = {"scopes": [{"op": "*", "precision": "int16"}]}


class Fed(DoubleInterpreter):
    """The quantized graph, in which each op reads what the artefact's ops before it gave; and by how much it differs."""

    def __init__(self, module: torch.fx.GraphModule, made: dict[Any, torch.Tensor]) -> None:
        super().__init__(module, find_target("ethos-u85-256"))
        self.made, self.steps = made, dict[str, float]()

    def run_node(self, n: torch.fx.Node) -> object:
        out = super().run_node(n)
        if n in self.made:
            op = str(n.args[0].target)
            self.steps[op] = max(self.steps.get(op, 0.0), float((self.made[n] - out.double()).abs().max()))
            return self.made[n].to(out.dtype)
        return out


def showing_everything(net: nn.Module, batch: tuple[torch.Tensor, ...], target: str) -> torch.fx.GraphModule:
    """The lowered program with every intermediate value as output."""
    module = rewrite_for(ingot.capture(net, batch), find_target(target), Recipe()).program.module
    values = [n for n in module.graph.nodes if n.op == "call_function" and is_float(n) and constant_of(n) is None]
    next(n for n in module.graph.nodes if n.op == "output").args = (tuple(values),)
    module.recompile()
    return module


def steps_between(casting: ingot.Casting, batch: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """By op: the largest difference between artefact and quantized graph, in int16 steps."""
    quantized, given = casting.evidence.quantized, casting.evidence.program.flatten(batch)
    made = zip(output_nodes(quantized), run_artefact(casting.pte, casting.evidence, [given])[0], strict=True)
    stored = {n.args[0]: (x.double() / n.args[1]).round() for n, x in made if "dequantize" in str(n.target)}
    fed = Fed(quantized, stored)
    fed.run(*given)
    return fed.steps


# Before they are added, numbers are rounded to a 2048th of the coarser step.
MOST_STEPS = {"aten.add.Tensor": 1, "aten.sub.Tensor": 1}


@pytest.mark.parametrize("name", ["DeiT", "MobileNetV3", "U-Net", "YOLO"])
def test_each_int16_op_agrees_with_the_quantized_graph(name: str) -> None:
    build, batches, _ = NETS[name]
    torch.manual_seed(0)
    target = need("ethos-u85-256")
    shown = showing_everything(settled(build(), batches), batches[0], target)
    casting = ingot.cast(shown, batches[0], target=target, calibration=batches, recipe=INT16, on_mismatch="keep")
    steps = steps_between(casting, batches[0])
    assert len(steps) >= 4
    assert {op: n for op, n in steps.items() if n > MOST_STEPS.get(op, 0)} == {}


# YOLO computes its stem twice: two equal convolutions, which Vela must not see as one with two results.
@pytest.mark.parametrize(("name", "on"), [*((name, "ethos-u85-256") for name in NETS), ("YOLO", "ethos-u55-128")])
def test_int16_outputs_are_within_one_step_of_the_quantized_graph(name: str, on: str) -> None:
    build, batches, _ = NETS[name]
    torch.manual_seed(0)
    casting = ingot.cast(settled(build(), batches), batches[0], target=need(on), calibration=batches, recipe=INT16)
    given = [casting.evidence.program.flatten(b) for b in batches]
    made, meant = run_artefact(casting.pte, casting.evidence, given), run_quantized(casting.evidence, given)
    for i, last in enumerate(output_nodes(casting.evidence.quantized)):
        assert max(float((a[i] - b[i]).abs().max()) for a, b in zip(made, meant, strict=True)) <= 1.01 * last.args[1]


def test_what_vela_refuses_in_int16_is_int8() -> None:
    """A transposed convolution on U55, which the partitioner takes in int16. The other ops are int16."""
    _, batches, _ = NETS["U-Net"]
    torch.manual_seed(0)
    target = need("ethos-u55-128")
    casting = ingot.cast(settled(UNet(), batches), batches[0], target=target, calibration=batches, recipe=INT16)
    assert (len(casting.delegates), casting.host_ops) == (1, ())
    dtypes = {d.op: d.qparams.dtype for d in casting.plan if d.point.operand == 0 and d.qparams}
    assert dtypes["aten.conv_transpose2d.input"] == "int8"
    assert dtypes["aten.conv2d.default"] == "int16"
    assert "Vela refuses it" in casting.plan.why("conv_transpose2d")
