"""Small nets on Arm's targets: the batches, the cast with seeded weights, and what a good casting must satisfy."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import ingot
from tests.support.models import images

ARM = ("vgf", "ethos-u55-128", "ethos-u85-256")
# Where vgf programs run depends on the tools that are installed.
HOW = {
    t.name: "scenario-runner" if t.name == "vgf" and not t.extras else "TOSA reference model" for t in ingot.targets()
}
Batches = list[tuple[torch.Tensor, ...]]
BATCHES: Batches = [(x,) for x in images(size=8)]


def seeded(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.3
    return model.eval()


def cast(model: nn.Module, target: str, batches: Batches = BATCHES, **more: Any) -> ingot.Casting:
    return ingot.cast(seeded(model), batches[0], target=target, calibration=batches, **more)


def assert_whole(casting: ingot.Casting, faithful: float = 60) -> None:
    assert (len(casting.delegates), casting.host_ops) == (1, ())
    assert HOW[casting.target] in casting.check.executed_on
    assert min(o.faithful_db for o in casting.check.outputs) >= faithful


def stored(plan: ingot.Plan) -> dict[str, str]:
    return {d.point.node: d.qparams.dtype if d.qparams else "float" for d in plan if d.point.operand is None}
