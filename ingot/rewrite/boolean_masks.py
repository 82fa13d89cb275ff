"""where(condition, a, b) -> m * a + (1 - m) * b, with the condition as the floats 0 and 1 (boolean_floats.py)

Also masked_fill, products with booleans and integers, and conversions of booleans to float: backends have no booleans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, constant_of, replace, source_of, value_name
from ingot.rewrite.boolean_floats import (
    LOWEST,
    REASON,
    forget_floats,
    is_boolean,
    is_converted_only,
    is_float32,
    is_integer,
    moves_elements,
    negated_truth,
    number_as_float,
    packet_name,
    truth_as_float,
)
from ingot.rewrite.decomposition import canonicalize_again, has_static_shapes
from ingot.rewrite.rule import in_float

aten = torch.ops.aten
# Ops that give infinities or NaN for finite numbers: zero times their result is no zero.
_UNSAFE = ("log", "log2", "log10", "log1p", "div", "rsqrt", "sqrt", "pow", "reciprocal", "tan", "exp", "acos", "asin")


@dataclass(frozen=True)
class BooleanMasks:
    name: str = "booleans-as-float"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in calls(module):
            new = _rewrite(node) if is_float32(node) and has_static_shapes(node) else None
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                new.meta["ingot_value"] = value_name(node)
                replace(node, new)
        forget_floats(module.graph)
        if places:
            canonicalize_again(module)
        return places


def _rewrite(node: Node) -> Node | None:
    """Ops with a float result that read booleans."""
    name = packet_name(node)
    if name == "where":
        return _select(node, node.args[0], node.args[1], node.args[2])
    if name == "masked_fill":
        return _select(node, node.args[1], node.args[2], node.args[0])
    if name in ("to", "_to_copy") and not is_float32(node.args[0]):
        return None if is_converted_only(node.args[0]) else number_as_float(node.args[0])
    if name in ("mul", "add", "sub", "div") and any(_counts(a) for a in node.args):
        args = [number_as_float(a) if _counts(a) else a for a in node.args]
        return None if None in args else call(node, node.target, *args)  # type: ignore[arg-type]
    return None


def _counts(value: Any) -> bool:
    """Torch makes it float before it adds or multiplies: a tensor of booleans or integers."""
    return is_boolean(value) or is_integer(value)


def _select(node: Node, condition: Any, chosen: Any, other: Any) -> Node | None:
    if not all(stays_finite(v) for v in (chosen, other)):
        return None
    m = truth_as_float(condition)
    return None if m is None else _sum(node, _times(node, m, chosen), _times(node, negated_truth(node, m), other))


def _sum(node: Node, a: Node | None, b: Node | None) -> Node | None:
    return in_float(node, REASON, aten.add.Tensor, a, b) if a is not None and b is not None else a or b


def _times(node: Node, m: Node, value: Any) -> Node | None:
    """None for zero."""
    number = _fill(value)
    if number == 0.0:
        return None
    return in_float(node, REASON, aten.mul.Tensor, m, value if number is None else number)


def _fill(value: Any) -> float | None:
    """The number that a scalar or a constant of one element stands for; infinite ones as the last finite float."""
    tensor = constant_of(value) if isinstance(value, Node) else torch.tensor(float(value))
    if tensor is None or tensor.numel() != 1 or (isinstance(value, Node) and tensor.dim()):
        return None
    return max(min(float(tensor), -LOWEST), LOWEST)


def stays_finite(value: Any) -> bool:
    """Finite, as far as can be told: computed without ops that give infinities, back to the last op that is no map."""
    queue, seen = [value], set[Any]()
    while queue:
        node = queue.pop()
        if not isinstance(node, Node) or node in seen:
            continue
        seen.add(node)
        constant = constant_of(node)
        if constant is not None and constant.is_floating_point() and not bool(torch.isfinite(constant).all()):
            return constant.numel() == 1 and node is value
        if node.op == "call_function" and packet_name(node) in _UNSAFE and not _divides_by_constant(node):
            return False
        if torch.Tag.pointwise in getattr(node.target, "tags", ()) or moves_elements(node):
            queue += node.all_input_nodes
    return True


def _divides_by_constant(node: Node) -> bool:
    """Other than zero: as scores are scaled."""
    if packet_name(node) != "div":
        return False
    divisor: Any = node.args[1]
    tensor = constant_of(divisor) if isinstance(divisor, Node) else torch.as_tensor(divisor)
    return tensor is not None and bool((tensor != 0).all())


RULE = BooleanMasks()
