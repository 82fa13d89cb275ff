"""Plans are run on a few batches before anything is lowered: which is best, and what it gets wrong on average.

Two things no histogram tells. How far the ends of a range may be drawn in depends on what later layers make of clipped
numbers: the best method differs from net to net by decibels. And rounding a weight, or clipping, moves the mean of a
channel: a bias can take that back (Nagel et al., Data-Free Quantization, 2019, measured here instead of derived).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import is_random, weight_axis
from ingot.core.fx import constant_of
from ingot.plan.model import Plan, QParams
from ingot.plan.noise_model import elements

METHODS = ("auto", "mse:4", "minmax", "entropy")
MOST, LEAST, BUDGET = 32, 4, 40_000_000  # batches to run: as many as make so many numbers
WORTHWHILE = 0.95  # of the noise, a quarter of a decibel: what looks better by less is chance

Batch = tuple[Any, ...]
Means = dict[str, Tensor]  # of each op with a bias: samples x channels


@dataclass(frozen=True)
class Candidate:
    name: str
    plan: Plan
    noise: float = 0.0


def rehearsed(plans: Mapping[str, Plan], module: GraphModule, batches: Sequence[Batch], *, correct: bool) -> Plan:
    """The plan whose outputs are nearest to the float ones; the first where no other is clearly nearer."""
    stage = Stage.of(module, batches[: _affordable(module)])
    tried = [_tried(name, plan, stage, correct and len(stage.batches) >= LEAST) for name, plan in plans.items()]
    best = min(tried, key=lambda c: c.noise)
    chosen = best if best.noise < WORTHWHILE * tried[0].noise else tried[0]
    return replace(chosen.plan, notes=(*chosen.plan.notes, _told(tried, chosen, stage)))


def can_rehearse(module: GraphModule, batches: Sequence[Batch]) -> bool:
    return bool(batches) and not any(map(is_random, module.graph.nodes))


def _affordable(module: GraphModule) -> int:
    made = sum(elements(n) for n in module.graph.nodes if n.op == "call_function")
    return min(max(BUDGET // max(made, 1), LEAST), MOST)


def _tried(name: str, plan: Plan, stage: Stage, correct: bool) -> Candidate:
    outputs, bias_corrections = stage.perform(plan, correct)
    moved = {node: tuple(s.tolist()) for node, s in bias_corrections.items() if bool(s.any())}
    return Candidate(name, replace(plan, bias_corrections=moved), _noise(stage.outputs, outputs))


def _told(tried: list[Candidate], chosen: Candidate, stage: Stage) -> str:
    each = ", ".join(f"{c.name} {-10 * math.log10(max(c.noise, 1e-20)):.1f} dB" for c in tried)
    moved = (
        f"{len(chosen.plan.bias_corrections)} biases corrected" if chosen.plan.bias_corrections else "no bias corrected"
    )
    return f"ranges by {chosen.name}, {moved}, after a rehearsal on {len(stage.batches)} batches: {each}"


@dataclass
class Stage:
    """A program and batches, on which plans are performed; first of all it is performed in float."""

    module: GraphModule
    batches: Sequence[Batch]
    means: Means = field(default_factory=dict)  # of the float program
    outputs: list[list[Tensor]] = field(default_factory=list)  # of the float program, per batch
    constants: dict[Any, Tensor] = field(default_factory=dict)  # rounded once for all plans

    @classmethod
    def of(cls, module: GraphModule, batches: Sequence[Batch]) -> Stage:
        stage = cls(module, batches)
        stage.outputs = [_tensors(_Float(module, stage.means).run(*batch)) for batch in batches]
        return stage

    def perform(self, plan: Plan, correct: bool) -> tuple[list[list[Tensor]], Means]:
        """Outputs, and what the biases need; each layer sees the ones before it already corrected."""
        runs = [_Rounded(self.module, plan, self.constants, batch) for batch in self.batches]
        bias_corrections: Means = {}
        for node in self.module.graph.nodes:
            made = [run.before_storing(node) for run in runs]
            if correct and node.name in self.means and plan.qparams(node.name, 1) is not None:
                bias_corrections[node.name] = _missing(
                    self.means[node.name], torch.cat([_channels(node, y) for y in made])
                )
                made = [y + bias_corrections[node.name].reshape(_along(node, y)) for y in made]
            for run, y in zip(runs, made, strict=True):
                run.store(node, y)
        return [_tensors(run.result) for run in runs], bias_corrections


def _missing(wanted: Tensor, got: Tensor) -> Tensor:
    """By how much each channel is off on average; less of it the more the samples disagree."""
    off = wanted - got
    mean, doubt = off.mean(0), off.var(0) / len(off) if len(off) > 1 else torch.inf
    return mean * (1 - doubt / mean.square().clamp_min(1e-30)).clamp_min(0)


def _has_bias(node: Node) -> bool:
    return node.op == "call_function" and weight_axis(node) is not None and _bias(node) is not None


def _bias(node: Node) -> Tensor | None:
    return constant_of(operands(node)[2]) if len(operands(node)) > 2 else None


def _axis(node: Node, y: Tensor) -> int:
    """Of the channels in what the op gives: first behind the batch for a convolution, last for a linear."""
    weight = constant_of(operands(node)[1])
    return y.dim() - (2 if weight is None else weight.dim()) + 1


def _along(node: Node, y: Tensor) -> list[int]:
    return [-1 if d == _axis(node, y) else 1 for d in range(y.dim())]


def _channels(node: Node, y: Tensor) -> Tensor:
    """The mean of each channel for each sample."""
    last = y.movedim(_axis(node, y), -1)
    return last.reshape(len(last) if last.dim() > 1 else 1, -1, last.shape[-1]).mean(1)


class _Float(Interpreter):
    def __init__(self, module: GraphModule, means: Means) -> None:
        super().__init__(module)
        self.means = means

    def run_node(self, n: Node) -> Any:
        y = super().run_node(n)
        if _has_bias(n):
            found = _channels(n, y)
            self.means[n.name] = torch.cat([self.means[n.name], found]) if n.name in self.means else found
        return y


class _Rounded(Interpreter):
    """The program on one batch, node by node, in which every slot of the plan rounds as it will."""

    def __init__(self, module: GraphModule, plan: Plan, constants: dict[Any, Tensor], batch: Batch) -> None:
        super().__init__(module)
        self.plan, self.constants, self.args_iter = plan, constants, iter(batch)
        self.result: Any = None

    def before_storing(self, n: Node) -> Any:
        places = count()
        args, kwargs = (torch.fx.map_arg(a, lambda s: self._read(n, s, next(places))) for a in (n.args, n.kwargs))
        return getattr(self, n.op)(n.target, args, kwargs)

    def store(self, n: Node, made: Any) -> None:
        storage = self.plan.qparams(n.name)
        self.result = self.env[n] = made if storage is None else rounded(made, storage)
        for dead in self.user_to_last_uses.get(n, []):
            del self.env[dead]

    def _read(self, n: Node, source: Node, operand: int) -> Any:
        storage = self.plan.qparams(n.name, operand)
        if storage is None or storage.dtype == "int32" or storage == self.plan.qparams(source.name):
            return self.env[source]  # a bias is rounded finely enough to be left out here
        if constant_of(source) is None:
            return rounded(self.env[source], storage)
        key = (source.target, storage)
        if key not in self.constants:
            self.constants[key] = rounded(self.env[source], storage)
        return self.constants[key]


def rounded(x: Tensor, s: QParams) -> Tensor:
    if x.dtype is not torch.float32:
        return rounded(x.float(), s).to(x.dtype)
    if s.axis is None:
        return torch.fake_quantize_per_tensor_affine(x, s.scale, s.zero_point, s.qmin, s.qmax)  # type: ignore[arg-type]
    scale, zero = torch.tensor(s.scale), torch.tensor(s.zero_point, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scale, zero, s.axis, s.qmin, s.qmax)


def _tensors(outputs: Any) -> list[Tensor]:
    flat = torch.utils._pytree.tree_leaves(outputs)
    return [o for o in flat if isinstance(o, Tensor) and o.is_floating_point()]


def _noise(wanted: list[list[Tensor]], got: list[list[Tensor]]) -> float:
    """Noise as a share of the signal, the outputs counting alike as the planner counts them.

    The geometric mean over batches: a plain one would be decided by the one or two on which errors happen to run away.
    """
    each = [sum(map(_share, w, g)) / max(len(w), 1) for w, g in zip(wanted, got, strict=True)]
    return math.exp(sum(math.log(max(n, 1e-20)) for n in each) / len(each))


def _share(wanted: Tensor, got: Tensor) -> float:
    """Where either is not finite (a mask) nothing is compared."""
    seen = wanted.isfinite() & got.isfinite()
    w, g = wanted[seen].double(), got[seen].double()
    return float((w - g).square().sum() / w.square().sum().clamp_min(1e-30))
