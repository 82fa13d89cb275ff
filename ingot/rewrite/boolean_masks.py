"""where(x > y, a, b) -> m * a + (1 - m) * b, with m = clamp((x - y) * 1e38, 0, 1): booleans as the floats 0 and 1

Comparisons, logical ops, any, all, and what moves or counts booleans become float arithmetic: backends have no booleans.
It is exact: a difference of normal floats is at least 1e-38. Integers are compared with constants below 2^23 only, which
float32 tells apart from all other integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import add_constant, call, calls, constant_of, replace, source_of, value_name, value_of
from ingot.rewrite.decomposition import canonicalize_again, has_static_shapes
from ingot.rewrite.rule import in_float

aten = torch.ops.aten
REASON = "part of a mask: zeros and ones in float"
_STEEP = 1e38
_EXACT = 2**23
_LOWEST = torch.finfo(torch.float32).min
# Ops that give infinities or NaN for finite numbers: zero times their result is no zero.
_UNSAFE = ("log", "log2", "log10", "log1p", "div", "rsqrt", "sqrt", "pow", "reciprocal", "tan", "exp", "acos", "asin")


@dataclass(frozen=True)
class BooleanMasks:
    name: str = "booleans-as-float"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in calls(module):
            new = _rewrite(node) if _is_float32(node) and has_static_shapes(node) else None
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                new.meta["ingot_value"] = value_name(node)
                replace(node, new)
        if places:
            canonicalize_again(module)
        return places


def _is_float32(node: Any) -> bool:
    val = value_of(node) if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32


def _rewrite(node: Node) -> Node | None:
    """Ops with a float result that read booleans."""
    name = _name(node)
    if name == "where":
        return _select(node, node.args[0], node.args[1], node.args[2])
    if name == "masked_fill":
        return _select(node, node.args[1], node.args[2], node.args[0])
    if name in ("to", "_to_copy") and not _is_float32(node.args[0]):
        return None if _is_leaf(node.args[0]) else _number(node.args[0])
    if name in ("mul", "add", "sub", "div") and any(_is_boolean(a) for a in node.args):
        args = [_number(a) if _is_boolean(a) else a for a in node.args]
        return None if None in args else call(node, node.target, *args)  # type: ignore[arg-type]
    return None


def _select(node: Node, condition: Any, chosen: Any, other: Any) -> Node | None:
    if not all(_is_safe(v) for v in (chosen, other)):
        return None
    m = _truth(condition)
    return None if m is None else _sum(node, _times(node, m, chosen), _times(node, _negated(node, m), other))


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
    return max(min(float(tensor), -_LOWEST), _LOWEST)


def _is_safe(value: Any) -> bool:
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
        if node.op == "call_function" and _name(node) in _UNSAFE:
            return False
        if torch.Tag.pointwise in getattr(node.target, "tags", ()) or _moves(node):
            queue += node.all_input_nodes
    return True


def _name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""


def _is_boolean(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value_of(value), torch.Tensor) and value_of(value).dtype == torch.bool


def _is_integer(value: Any) -> bool:
    val = value_of(value) if isinstance(value, Node) else None
    return isinstance(val, torch.Tensor) and not val.dtype.is_floating_point and val.dtype != torch.bool


def _is_leaf(value: Any) -> bool:
    """What has no float form but a conversion."""
    return not isinstance(value, Node) or (value.op != "get_attr" and _maker(value) is None)


# ---- the float form of a boolean or of a small integer, computed once, right after it


def _truth(value: Any) -> Node | None:
    """0.0 and 1.0 for a boolean."""
    return _number(value) if _is_boolean(value) else None


def _number(value: Any) -> Node | None:
    if not isinstance(value, Node) or not has_static_shapes(value):
        return None
    if "ingot_as_float" not in value.meta:
        value.meta["ingot_as_float"] = _made(value)
    return value.meta["ingot_as_float"]


def _made(value: Node) -> Node | None:
    constant = constant_of(value)
    if constant is not None:
        return _float_constant(value, constant)
    maker = _maker(value)
    made = maker(value, _after(value)) if maker is not None else None
    return made if made is not None else in_float(_after(value), REASON, aten.to.dtype, value, torch.float32)


def _float_constant(node: Node, tensor: torch.Tensor) -> Node | None:
    small = tensor.dtype == torch.bool or not tensor.numel() or int(tensor.abs().max()) < _EXACT
    at, module = _after(node), node.graph.owning_module
    return add_constant(module, tensor.float(), f"{node.name}_float", at) if small else None  # type: ignore[arg-type]


def _after(node: Node) -> Node:
    """The place right after a node; inputs come first."""
    place = node.next
    while place.op in ("placeholder", "get_attr"):
        place = place.next
    return place


_Maker = Callable[[Node, Node], "Node | None"]


def _maker(node: Node) -> _Maker | None:
    name = _name(node)
    if name in _COMPARISONS:
        return _compared
    if name in _LOGICAL and all(_is_boolean(n) for n in node.all_input_nodes):
        return _LOGICAL[name]
    if name in ("to", "_to_copy"):
        return _converted
    if node.op == "call_function" and _moves(node):
        return _moved
    return None


def _moves(node: Node) -> bool:
    if node.op != "call_function" or not isinstance(value_of(node), torch.Tensor):
        return False
    if _name(node) in ("expand", "reshape", "permute", "unsqueeze", "slice", "cat", "squeeze", "view", "clone"):
        return True
    return not _is_float32(node) and len(node.all_input_nodes) == 1 and effect_of(node).kind is Kind.MOVES


def _moved(node: Node, at: Node) -> Node | None:
    twins = {n: _number(n) for n in node.all_input_nodes}
    if None in twins.values():
        return None
    args: Any = torch.fx.map_arg(node.args, twins.__getitem__)
    return in_float(at, REASON, node.target, *args) if not node.kwargs else None


def _converted(node: Node, at: Node) -> Node | None:
    """Integers to booleans: not equal zero. Booleans to integers: as they are."""
    source: Any = node.args[0]
    if _is_boolean(source):
        return _number(source)
    if not _is_boolean(node):
        return _number(source) if _is_integer(source) and _is_integer(node) else None
    x = source if _is_float32(source) else _number(source)
    return None if x is None else _unequal(at, x, 0.0)


def _compared(node: Node, at: Node) -> Node | None:
    a, b = node.args
    if any(_is_integer(v) for v in (a, b)) and not any(_is_small_constant(v) for v in (a, b)):
        return None
    x, y = (_comparable(v) for v in (a, b))
    return None if x is None or y is None else _COMPARISONS[_name(node)](at, x, y)


def _comparable(value: Any) -> Any:
    """A float32 value, the float form of an integer, or a number."""
    if isinstance(value, Node):
        return value if _is_float32(value) else _number(value) if not _is_other_float(value) else None
    return float(value)


def _is_other_float(node: Node) -> bool:
    return bool(value_of(node).dtype.is_floating_point)


def _is_small_constant(value: Any) -> bool:
    tensor = torch.as_tensor(value) if not isinstance(value, Node) else constant_of(value)
    return tensor is not None and (not tensor.numel() or float(tensor.abs().max()) < _EXACT)


def _greater(at: Node, x: Any, y: Any) -> Node:
    if _is_infinite(y):
        x, y = x, max(min(y, -_LOWEST), _LOWEST)
    steep = in_float(at, REASON, aten.mul.Tensor, _difference(at, x, y), _STEEP)
    return in_float(at, REASON, aten.clamp.default, steep, 0.0, 1.0)


def _difference(at: Node, x: Any, y: Any) -> Node:
    if not isinstance(x, Node):
        return in_float(at, REASON, aten.add.Tensor, in_float(at, REASON, aten.neg.default, y), x)
    return x if y == 0.0 and not isinstance(y, Node) else in_float(at, REASON, aten.sub.Tensor, x, y)


def _unequal(at: Node, x: Any, y: Any) -> Node:
    """Not equal -inf: above the lowest float; inf - inf would be NaN."""
    if _is_infinite(y):
        inside = _difference(at, x, _LOWEST) if y < 0 else _difference(at, -_LOWEST, x)
        shifted = in_float(at, REASON, aten.mul.Tensor, in_float(at, REASON, aten.add.Tensor, inside, 1.0), _STEEP)
        return in_float(at, REASON, aten.clamp.default, shifted, 0.0, 1.0)
    size = in_float(at, REASON, aten.abs.default, _difference(at, x, y))
    return in_float(at, REASON, aten.clamp.default, in_float(at, REASON, aten.mul.Tensor, size, _STEEP), 0.0, 1.0)


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and value in (float("inf"), float("-inf"))


def _negated(at: Node, m: Node) -> Node:
    return in_float(at, REASON, aten.add.Tensor, in_float(at, REASON, aten.neg.default, m), 1.0)


_COMPARISONS: dict[str, Callable[[Node, Any, Any], Node]] = {
    "gt": _greater,
    "lt": lambda at, x, y: _greater(at, y, x),
    "le": lambda at, x, y: _negated(at, _greater(at, x, y)),
    "ge": lambda at, x, y: _negated(at, _greater(at, y, x)),
    "ne": _unequal,
    "eq": lambda at, x, y: _negated(at, _unequal(at, x, y)),
}


def _both(node: Node, at: Node) -> Node | None:
    return _combined(node, at, aten.mul.Tensor)


def _either(node: Node, at: Node) -> Node | None:
    return _combined(node, at, aten.maximum.default)


def _combined(node: Node, at: Node, op: Any) -> Node | None:
    a, b = (_truth(v) for v in node.args)
    return None if a is None or b is None else in_float(at, REASON, op, a, b)


def _not(node: Node, at: Node) -> Node | None:
    m = _truth(node.args[0])
    return None if m is None else _negated(at, m)


def _one_of_two(node: Node, at: Node) -> Node | None:
    """xor"""
    a, b = (_truth(v) for v in node.args)
    return None if a is None or b is None else _unequal(at, a, b)


def _any(node: Node, at: Node) -> Node | None:
    m = _truth(node.args[0])
    return None if m is None else in_float(at, REASON, aten.amax.default, m, *_reduced(node))


def _all(node: Node, at: Node) -> Node | None:
    m = _truth(node.args[0])
    if m is None:
        return None
    return _negated(at, in_float(at, REASON, aten.amax.default, _negated(at, m), *_reduced(node)))


def _reduced(node: Node) -> tuple[Any, ...]:
    """Dimensions as a list, and keepdim."""
    if len(node.args) < 2:
        return ([], False)
    dims: Any = node.args[1]
    return ([dims] if isinstance(dims, int) else list(dims or []), bool(node.args[2]) if len(node.args) > 2 else False)


_LOGICAL: dict[str, _Maker] = {
    "logical_and": _both, "bitwise_and": _both, "logical_or": _either, "bitwise_or": _either, "logical_not": _not,
    "bitwise_not": _not, "logical_xor": _one_of_two, "bitwise_xor": _one_of_two, "any": _any, "all": _all,
}  # fmt: skip

RULE = BooleanMasks()
