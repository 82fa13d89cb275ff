"""What each op imposes: the precisions it may run in, the operands that share its output scale, possible fusions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from ingot.calibrate.sensitivity import operand_key
from ingot.calibrate.statistics import Ranges
from ingot.capture.op_semantics import Effect, Kind, effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import calls, constant_of, decides, is_float, is_state, value_name, value_of
from ingot.plan.mask_fills import bulk_range, range_without_fills
from ingot.plan.value_ranges import ValueRange, value_range_of, width
from ingot.targets.base import DYNAMIC, Target

# A shared int8 scale may cost an operand of a cat at most half of its bits if a float consumer reads the result.
MAX_LOST_BITS = 4.0

# Known without an experiment, which would be the most expensive of all.
WEIGHTED = Effect(Kind.COMPUTES, (), (), False, "multiplies by a weight")
DECIDES = Effect(Kind.COMPUTES, (), (), False, "reads numbers and gives integers")


@dataclass
class Constraints:
    """The constraints of one program on one target, in graph order. The solver chooses among the options."""

    ranges: Ranges
    effects: dict[Node, Effect] = field(default_factory=dict)
    options: dict[Node, dict[str, str]] = field(default_factory=dict)  # op -> allowed precisions, each with its reason
    float_only: dict[Node, str] = field(default_factory=dict)  # op -> why it cannot run on integers
    # op -> operands (None: the result) that may have another format than the op's precision
    operand_formats: dict[Node, Mapping[int | None, tuple[str, ...]]] = field(default_factory=dict)
    # op -> operands that must have the qparams of its output
    shared_scale_operands: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    dynamic: dict[Node, str] = field(default_factory=dict)  # op -> who says that it may quantize its input at run time
    fusable: dict[Node, Node] = field(default_factory=dict)  # producer -> the activation that can run in its kernel
    float_consumed: set[Node] = field(default_factory=set)  # ops whose result has a float consumer
    mask_fills: dict[Node, ValueRange] = field(default_factory=dict)  # value with mask fills -> its range without them

    def value_range(self, value: Node) -> ValueRange:
        """The range to quantize: without mask fill values."""
        return self.mask_fills.get(value) or value_range_of(value, self.ranges, self.effects)


def constraints_of(module: GraphModule, target: Target, ranges: Ranges) -> Constraints:
    found = Constraints(ranges)
    nodes = [n for n in calls(module) if is_float(n) or _is_planned_decision(n, target)]
    for node in nodes:
        found.effects[node] = _effect(node)
    for node in reversed(module.graph.nodes):  # consumers first: their ranges decide how low a fill must stay
        if (rest := range_without_fills(node, found)) is not None:
            found.mask_fills[node] = rest
    for node in reversed(nodes):
        if _has_float_consumer(node, found, target):
            found.float_consumed.add(node)
    for node in nodes:
        _find_options(node, found, target)
    for node in nodes:
        _find_fusion_and_sharing(node, found, target)
    return found


def _is_planned_decision(node: Node, target: Target) -> bool:
    """Where it can run on quantized operands. Others stay as they are, on the host or in arithmetic of booleans."""
    planned = target.kernels.integer_results and decides(node)
    return planned and bool(target.kernels.ability(node).runs & target.numerics.formats.keys())


def _effect(node: Node) -> Effect:
    if weight_axis(node) is not None:
        return WEIGHTED
    return effect_of(node, constant_of) if is_float(node) else DECIDES


def _find_options(node: Node, found: Constraints, target: Target) -> None:
    """Float always; integers where the target has a kernel and all values can be quantized."""
    found.options[node] = {"float": "float is always possible"}
    reason = _why_float(node, found)
    able = target.kernels.ability(node) if reason is None else None
    if able is None or reason is not None:
        found.float_only[node] = reason or ""
        _find_dynamic(node, found, target)
        return
    integers = {p: able.because for p in target.numerics.formats if p in able.runs}
    _find_dynamic(node, found, target)
    if able.operands:
        found.operand_formats[node] = able.operands
    if "int8" in integers and (reason := _lost_resolution(node, found)):
        found.float_only[node] = reason
        del integers["int8"]
    found.options[node] |= integers
    if not integers:
        found.float_only.setdefault(node, able.because)


def _find_dynamic(node: Node, found: Constraints, target: Target) -> None:
    """Float in, float out, an int8 weight. It needs no calibration statistics."""
    if weight_axis(node) is None or node.meta.get("ingot_float") or not (_only_float32(node) and _static_weight(node)):
        return
    able = target.kernels.ability(node)
    if DYNAMIC in able.runs:
        found.dynamic[node] = able.because


def _why_float(node: Node, found: Constraints) -> str | None:
    if found.effects[node].kind is Kind.CREATES:
        return "a generated constant: its consumer determines the scale"
    if node.meta.get("ingot_float"):
        return str(node.meta["ingot_float"])
    if operands(node) and is_state(operands(node)[0]) and node.target is torch.ops.aten.copy_.default:
        return "it writes state, which the program keeps in float"
    if not _only_float32(node):
        return "an operand or the result is floating point, but not float32"
    for value in (*operands(node), node):
        if not _is_of_integers(value) and (why := _why_not_quantizable(value, found)):
            return why
    if weight_axis(node) is not None and not _static_weight(node):
        return "its weight is computed at run time"
    return _why_exact_operand(node, found)


def _why_exact_operand(node: Node, found: Constraints) -> str | None:
    """For a step function (ceil, round, sign) of a program input, and for ops that only move the input to one."""
    if not operands(node) or _origin(operands(node)[0], found).op != "placeholder" or not _leads_to_step(node, found):
        return None
    return "a step function reads this program input: rounded, it may be on the other side of a step"


def _leads_to_step(node: Node, found: Constraints) -> bool:
    if node in found.effects and _only_moves(node, found):
        return any(_leads_to_step(user, found) for user in node.users)
    return node in found.effects and _is_step(node, found)


def _is_step(node: Node, found: Constraints) -> bool:
    """Its gradient is zero everywhere, though its result varies."""
    if found.effects[node] is DECIDES:
        return True
    read, sensitivity = operands(node), found.ranges.sensitivity
    if found.effects[node].kind is not Kind.COMPUTES or len(read) != 1:
        return False
    stats, use = found.ranges.values.get(value_name(node)), operand_key(value_name(node), value_name(read[0]), 0)
    varies = stats is not None and stats.min != stats.max
    return varies and sensitivity.get(use) == 0.0 and bool(sensitivity.get(value_name(node)))


def _origin(value: Node, found: Constraints) -> Node:
    """Before ops that only move values. A computed value has its error already: float would not undo it."""
    while value in found.effects and _only_moves(value, found):
        value = operands(value)[0]
    return value


def _only_moves(node: Node, found: Constraints) -> bool:
    return found.effects[node].kind is Kind.MOVES and len(operands(node)) == 1


def _is_of_integers(value: Node) -> bool:
    """Indices and masks are not quantized: they need no statistics."""
    val = value_of(value)
    return isinstance(val, torch.Tensor) and not val.dtype.is_floating_point


def _why_not_quantizable(value: Node, found: Constraints) -> str | None:
    if value in found.mask_fills:
        return None
    constant = constant_of(value)
    if constant is not None:
        finite = bool(torch.isfinite(constant.detach()).all())
        return None if finite else f"the constant {value.name} is not finite everywhere"
    stats = found.ranges.values.get(value_name(value))
    if stats is not None and (stats.nonfinite or not stats.finite):
        return f"{value.name} was not finite everywhere during calibration"
    if stats is not None and bulk_range(stats) is not None:
        return f"{value.name} contains the fill value {stats.min:.3g}, and a consumer depends on its magnitude"
    effect = found.effects.get(value)
    if stats is not None:
        return None
    if effect is None or not effect.carriers:
        return f"{value.name} has no calibration statistics: a rewrite created it, or no batch took its branch"
    moved = (operands(value)[i] for i in effect.carriers)  # whose ranges it has
    return next((why for each in moved if (why := _why_not_quantizable(each, found))), None)


def _lost_resolution(node: Node, found: Constraints) -> str | None:
    """One int8 scale for boxes and scores erases the scores; that matters if a float consumer reads the result."""
    carriers = found.effects[node].carriers
    widths = sorted(w for i in carriers if (w := width(found.value_range(operands(node)[i]))) > 0)
    if len(widths) < 2 or widths[-1] / widths[0] <= 2**MAX_LOST_BITS or node not in found.float_consumed:
        return None
    bits = torch.tensor(widths[-1] / widths[0]).log2().item()
    return f"a shared int8 scale would cost its smallest operand {bits:.1f} bits, and a float consumer reads the result"


def _has_float_consumer(node: Node, found: Constraints, target: Target) -> bool:
    """A graph output or an op without an int8 kernel reads the value, directly or behind ops that only carry it on."""
    for user in node.users:
        if user.op == "output" or (is_float(user) and "int8" not in target.kernels.ability(user).runs):
            return True
        if user in found.effects and found.effects[user].carriers and user in found.float_consumed:
            return True
    return False


def _only_float32(node: Node) -> bool:
    """All its floats are float32. Masks and indices are not quantized; whether a kernel takes them the target knows."""
    return all(value_of(n).dtype is torch.float32 for n in (*operands(node), node) if is_float(n))


def _static_weight(node: Node) -> bool:
    return all(constant_of(a) is not None for a in node.args[1:3] if isinstance(a, Node))


def _find_fusion_and_sharing(node: Node, found: Constraints, target: Target) -> None:
    """If the op runs on integers: may it run in its producer's kernel, and which operands share its output scale?"""
    if len(found.options[node]) == 1:
        return
    producer = operands(node)[0] if operands(node) else None
    if producer is not None and _fuses(producer, node, found, target):
        found.fusable[producer] = node
    if not target.kernels.requantizes(node):
        found.shared_scale_operands[node] = found.effects[node].carriers


def _fuses(producer: Node, node: Node, found: Constraints, target: Target) -> bool:
    """Only for a single consumer: the value between the two is never quantized."""
    both = found.options.get(producer, {}).keys() & found.options[node].keys() - {"float"}
    return bool(both) and len(producer.users) == 1 and target.kernels.fuses(producer, node)
