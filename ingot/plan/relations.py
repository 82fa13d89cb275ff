"""What each op forces: which ops run on integers, which pairs run as one, which slots must hold the same scale."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from ingot.graph import calls, constant_of, is_float, is_state, value_name
from ingot.ranges import Ranges
from ingot.semantics import Effect, Kind, effect_of, operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Target

SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor)  # in a product, each side keeps its own scale
TOO_FAR = 1024  # int8 has 256 steps: the smaller side would be a quarter of one
TOO_FAR_TO_JOIN = 16  # four of eight bits

# No experiment is needed to know this, and it would be the dearest of all.
WEIGHTED = Effect(Kind.COMPUTES, (), (), False, "it multiplies by a weight")


@dataclass
class Relations:
    """Facts about one program on one target, in graph order. Filled here, read by the solver."""

    ranges: Ranges
    effects: dict[Node, Effect] = field(default_factory=dict)
    integer: dict[Node, str] = field(default_factory=dict)  # op -> why it runs on integers
    floating: dict[Node, str] = field(default_factory=dict)  # op -> why it stays float
    fused: dict[Node, Node] = field(default_factory=dict)  # producer -> the op that runs in its kernel
    carried: dict[Node, tuple[int, ...]] = field(default_factory=dict)  # op -> operands stored exactly as its output


def relate(module: GraphModule, target: Target, ranges: Ranges) -> Relations:
    found = Relations(ranges)
    for node in calls(module):
        if is_float(node):
            found.effects[node] = WEIGHTED if weight_axis(node) is not None else effect_of(node, constant_of)
            _label(node, found, target)
            _fuse(node, found, target)
            if node in found.integer and node not in found.fused.values() and not target.rescales(node):
                found.carried[node] = found.effects[node].carriers
    return found


def _label(node: Node, found: Relations, target: Target) -> None:
    """Integers where the target has a kernel, unless all the op reads was just computed in float."""
    reason = _why_float(node, found, target)
    if reason is None:
        able = target.ability(node)
        reason = None if "int8" in able.runs else able.because
        because = able.because
    if reason is None:
        found.integer[node] = because
    else:
        found.floating[node] = reason


def _why_float(node: Node, found: Relations, target: Target) -> str | None:
    if found.effects[node].kind is Kind.CREATES:
        return "it creates a value: whoever reads it decides the scale"
    if node.meta.get("ingot_float"):
        return str(node.meta["ingot_float"])
    if not _only_float32(node):
        return "it reads or writes numbers other than float32"
    for value in (*operands(node), node):
        if why := _unfit(value, found):
            return why
    if weight_axis(node) is not None:
        return None if _static_weight(node) else "its weight is computed at run time"
    return _drowned(node, found, target) or _surrounded_by_float(node, found)


def _unfit(value: Node, found: Relations) -> str | None:
    """Why a value cannot be stored as integers at all."""
    if is_state(value):
        return f"{value.name} is state: quantized where it is read it would be frozen at its initial value"
    constant = constant_of(value)
    if constant is not None:
        return (
            None if bool(torch.isfinite(constant.detach()).all()) else f"{value.name} has numbers that are not finite"
        )
    stats = found.ranges.values.get(value_name(value))
    if stats is not None and (stats.nonfinite or not stats.finite):
        return f"{value.name} was not finite everywhere"
    carries = found.effects.get(value)
    if stats is None and not (carries and carries.carriers):
        return f"{value.name} was made by a rewrite: no range is recorded for it"
    return None


def _drowned(node: Node, found: Relations, target: Target) -> str | None:
    """One scale for operands of very different range leaves nothing of the smaller.

    A sum (scores and a mask of -1e9) rounds its result; a join (boxes and scores) rounds its operands, which matters
    only to who reads the result at full precision.
    """
    spans = sorted(span for n in operands(node) if (span := _span(n, found)) > 0)
    far = spans[-1] / spans[0] if len(spans) > 1 else 1.0
    joins = len(found.effects[node].carriers) > 1
    if (node.target in SUMS and far > TOO_FAR) or (joins and far > TOO_FAR_TO_JOIN and _read_in_float(node, target)):
        return f"its operands differ {far:.0f}-fold in range: one int8 scale would drown the smaller"
    return None


def _read_in_float(node: Node, target: Target) -> bool:
    """The caller reads the value, or an op without an int8 kernel does, at once or behind ops that only carry it on."""
    for user in node.users:
        if user.op == "output" or (is_float(user) and "int8" not in target.ability(user).runs):
            return True
        carries_on = is_float(user) and weight_axis(user) is None and effect_of(user, constant_of).carriers
        if carries_on and _read_in_float(user, target):
            return True
    return False


def _span(value: Node, found: Relations) -> float:
    constant = constant_of(value)
    if constant is not None:
        return float(constant.detach().abs().max())
    stats = found.ranges.values.get(value_name(value))
    return max(abs(stats.min), abs(stats.max)) if stats else 0.0


def _only_float32(node: Node) -> bool:
    vals = [n.meta.get("val") for n in (*operands(node), node)]
    return all(str(getattr(v, "dtype", "")) == "torch.float32" for v in vals)


def _static_weight(node: Node) -> bool:
    return all(constant_of(a) is not None for a in node.args[1:3] if isinstance(a, Node))


def _surrounded_by_float(node: Node, found: Relations) -> str | None:
    """Quantizing only to compute one cheap op between float ops costs two conversions and a rounding."""
    made = [n for n in operands(node) if n.op == "call_function"]
    if any(n in found.integer for n in made):
        return None
    source = next((n for n in made if n in found.floating), None)
    return None if source is None else f"what it reads is computed in float ({source.name})"


def _fuse(node: Node, found: Relations, target: Target) -> None:
    """act(f(x)) runs as one kernel if f has no other reader: no number is stored between them."""
    before = operands(node)[0] if operands(node) else None
    if before is None or before not in found.integer or node not in found.integer or len(before.users) != 1:
        return
    if target.fuses(before, node):
        found.fused[before] = node
