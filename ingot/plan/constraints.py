"""What each op forces: the precisions it may run in, and the operands whose numbers go through it untouched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from ingot.calibrate.statistics import Ranges
from ingot.capture.op_semantics import Effect, Kind, effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import calls, constant_of, is_float, is_state, value_name, value_of
from ingot.plan.mask_fills import body, range_without_fills
from ingot.plan.value_ranges import Span, span_of, width
from ingot.targets.base import Target

KILLED_BITS = 4.0  # a join may cost no branch more than half of an int8's bits where somebody reads them

# No experiment is needed to know this, and it would be the dearest of all.
WEIGHTED = Effect(Kind.COMPUTES, (), (), False, "it multiplies by a weight")


@dataclass
class Constraints:
    """Facts about one program on one target, in graph order. Filled here, read by the solver."""

    ranges: Ranges
    effects: dict[Node, Effect] = field(default_factory=dict)
    options: dict[Node, dict[str, str]] = field(default_factory=dict)  # op -> precisions, and who says so
    barred: dict[Node, str] = field(default_factory=dict)  # op -> why it cannot run on integers
    # op -> what it stores otherwise than its precision says, by operand (None: the result)
    apart: dict[Node, Mapping[int | None, tuple[str, ...]]] = field(default_factory=dict)
    bound: dict[Node, tuple[int, ...]] = field(default_factory=dict)  # op -> operands stored exactly as its output
    fusable: dict[Node, Node] = field(default_factory=dict)  # producer -> the op that can run in its kernel
    heard: set[Node] = field(default_factory=set)  # ops whose result somebody reads in float
    mask_fills: dict[Node, Span] = field(default_factory=dict)  # value with a mask's fills -> the range without them

    def span(self, value: Node) -> Span:
        """The range that has a vote: fills of a mask have none."""
        return self.mask_fills.get(value) or span_of(value, self.ranges, self.effects)


def constraints_of(module: GraphModule, target: Target, ranges: Ranges) -> Constraints:
    found = Constraints(ranges)
    nodes = [n for n in calls(module) if is_float(n)]
    for node in nodes:
        found.effects[node] = WEIGHTED if weight_axis(node) is not None else effect_of(node, constant_of)
    for node in reversed(module.graph.nodes):  # a fill is forgotten by who reads it, or by who reads what that makes
        if (span := range_without_fills(node, found)) is not None:
            found.mask_fills[node] = span
    for node in reversed(nodes):
        if _reads_in_float(node, found, target):
            found.heard.add(node)
    for node in nodes:
        _offer(node, found, target)
    for node in nodes:
        _bind(node, found, target)
    return found


def _offer(node: Node, found: Constraints, target: Target) -> None:
    """Float always; integers where the target has a kernel and the numbers can be stored."""
    found.options[node] = {"float": "float is always possible"}
    reason = _why_float(node, found)
    able = target.kernels.ability(node) if reason is None else None
    if able is None or reason is not None:
        found.barred[node] = reason or ""
        return
    offers = {p: able.because for p in target.numerics.formats if p in able.runs}
    if able.operands:
        found.apart[node] = able.operands
    if "int8" in offers and (dead := _killed(node, found)):
        found.barred[node] = dead
        del offers["int8"]
    found.options[node] |= offers
    if not offers:
        found.barred.setdefault(node, able.because)


def _why_float(node: Node, found: Constraints) -> str | None:
    if found.effects[node].kind is Kind.CREATES:
        return "it creates a value: whoever reads it decides the scale"
    if node.meta.get("ingot_float"):
        return str(node.meta["ingot_float"])
    if not _only_float32(node):
        return "it reads or writes numbers other than float32"
    for value in (*operands(node), node):
        if why := _unfit(value, found):
            return why
    if weight_axis(node) is not None and not _static_weight(node):
        return "its weight is computed at run time"
    return None


def _unfit(value: Node, found: Constraints) -> str | None:
    """Why a value cannot be stored as integers at all."""
    if is_state(value):
        return f"{value.name} is state: quantized where it is read it would be frozen at its initial value"
    if value in found.mask_fills:
        return None
    constant = constant_of(value)
    if constant is not None:
        finite = bool(torch.isfinite(constant.detach()).all())
        return None if finite else f"{value.name} has numbers that are not finite"
    stats = found.ranges.values.get(value_name(value))
    if stats is not None and (stats.nonfinite or not stats.finite):
        return f"{value.name} was not finite everywhere"
    if stats is not None and body(stats) is not None:
        return f"{value.name} is filled with {stats.min:.3g} in places, and its readers tell that from less"
    carries = found.effects.get(value)
    if stats is None and not (carries and carries.carriers):
        return f"{value.name} was made by a rewrite: no range is recorded for it"
    return None


def _killed(node: Node, found: Constraints) -> str | None:
    """One int8 scale for boxes and scores leaves nothing of the scores, if who reads the result can tell."""
    carriers = found.effects[node].carriers
    widths = sorted(w for i in carriers if (w := width(found.span(operands(node)[i]))) > 0)
    if len(widths) < 2 or widths[-1] / widths[0] <= 2**KILLED_BITS or node not in found.heard:
        return None
    bits = torch.tensor(widths[-1] / widths[0]).log2().item()
    return f"one int8 scale would cost its smallest operand {bits:.1f} bits, and the result is read in float"


def _reads_in_float(node: Node, found: Constraints, target: Target) -> bool:
    """The caller reads the value, or an op without an int8 kernel does, at once or behind ops that only carry it on."""
    for user in node.users:
        if user.op == "output" or (is_float(user) and "int8" not in target.kernels.ability(user).runs):
            return True
        if user in found.effects and found.effects[user].carriers and user in found.heard:
            return True
    return False


def _only_float32(node: Node) -> bool:
    """Of its floats; a mask or an index is nothing to quantize, and whether the kernel takes it the target knows."""
    return all(value_of(n).dtype is torch.float32 for n in (*operands(node), node) if is_float(n))


def _static_weight(node: Node) -> bool:
    return all(constant_of(a) is not None for a in node.args[1:3] if isinstance(a, Node))


def _bind(node: Node, found: Constraints, target: Target) -> None:
    """What holds if the op runs on integers: act(f(x)) in f's kernel, or numbers that go through untouched."""
    if len(found.options[node]) == 1:
        return
    before = operands(node)[0] if operands(node) else None
    if before is not None and _fuses(before, node, found, target):
        found.fusable[before] = node
    if not target.kernels.requantizes(node):
        found.bound[node] = found.effects[node].carriers


def _fuses(before: Node, node: Node, found: Constraints, target: Target) -> bool:
    """One reader only: no number is stored between the two."""
    both = found.options.get(before, {}).keys() & found.options[node].keys() - {"float"}
    return bool(both) and len(before.users) == 1 and target.kernels.fuses(before, node)
