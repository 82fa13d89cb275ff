"""Booleans, and integers that count or mark, as float values: 0.0 and 1.0 in the place of False and True.

x > y -> clamp((x - y) * 1e38, 0, 1); a & b -> a * b; ~a -> 1 - a; any(a) -> amax(a); sum(a) -> sum of the floats;
where(c, a, b) -> c * a + (1 - c) * b; int(x) -> trunc(x); moves move the floats.

It is exact: a difference of normal floats is at least 1e-38. Integers are compared with constants below 2^23 only: in
float32 no other integer equals those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.core.fx import add_constant, constant_of, value_of
from ingot.rewrite.decomposition import has_static_shapes
from ingot.rewrite.rule import in_float
from ingot.rewrite.trial_moves import moves_by_trial

aten = torch.ops.aten
REASON = "part of a mask: zeros and ones in float"
_STEEP = 1e38
_EXACT = 2**23
LOWEST = torch.finfo(torch.float32).min


def is_float32(node: Any) -> bool:
    val = value_of(node) if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32


def packet_name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""


def is_boolean(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value_of(value), torch.Tensor) and value_of(value).dtype == torch.bool


def is_integer(value: Any) -> bool:
    val = value_of(value) if isinstance(value, Node) else None
    return isinstance(val, torch.Tensor) and not val.dtype.is_floating_point and val.dtype != torch.bool


def is_converted_only(value: Any) -> bool:
    """What has no float form but a conversion."""
    return not isinstance(value, Node) or (value.op != "get_attr" and _maker(value) is None)


def truth_as_float(value: Any) -> Node | None:
    """0.0 and 1.0 for a boolean."""
    return number_as_float(value) if is_boolean(value) else None


def number_as_float(value: Any) -> Node | None:
    if not isinstance(value, Node) or not has_static_shapes(value):
        return None
    if "ingot_as_float" not in value.meta:
        value.meta["ingot_as_float"] = _made(value)
    return value.meta["ingot_as_float"]


def forget_floats(graph: Graph) -> None:
    """What was noted at nodes: a copy of the graph would refer to this one."""
    for node in graph.nodes:
        node.meta.pop("ingot_as_float", None)


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
    name = packet_name(node)
    if name in _COMPARISONS:
        return _compared
    if name in _LOGICAL and all(is_boolean(n) for n in node.all_input_nodes):
        return _LOGICAL[name]
    if name in ("to", "_to_copy"):
        return _converted
    if name == "mul" and is_integer(node):
        return _multiplied
    if name == "sum" and is_boolean(node.args[0]) and value_of(node.args[0]).numel() < _EXACT:  # type: ignore[arg-type]
        return _counted
    if name in ("where", "masked_fill") and is_boolean(node):
        return _chosen
    return _moved if moves_elements(node) else None


def moves_elements(node: Node) -> bool:
    """Moves the elements of its operands that are no constants. A constant among them is an index, but in a cat."""
    if node.op != "call_function" or not isinstance(value_of(node), torch.Tensor) or not node.all_input_nodes:
        return False
    if packet_name(node) in ("expand", "reshape", "permute", "unsqueeze", "slice", "cat", "squeeze", "view", "clone"):
        return True
    carried = _carried(node)
    return len(carried) == 1 and has_static_shapes(carried[0]) and moves_by_trial(node, carried[0])


def _carried(node: Node) -> list[Node]:
    every = packet_name(node) == "cat"
    return [n for n in node.all_input_nodes if every or constant_of(n) is None]


def _moved(node: Node, at: Node) -> Node | None:
    twins = {n: number_as_float(n) for n in _carried(node)}
    if None in twins.values() or node.kwargs:
        return None
    args: Any = torch.fx.map_arg(node.args, lambda n: twins.get(n, n))
    return in_float(at, REASON, node.target, *args)


def _converted(node: Node, at: Node) -> Node | None:
    """Integers to booleans: not equal zero. Booleans to integers: as they are. Floats to integers: without fraction."""
    source: Any = node.args[0]
    if is_boolean(source):
        return number_as_float(source)
    if is_float32(source) and value_of(node).dtype in (torch.int32, torch.int64):
        return in_float(at, REASON, aten.trunc.default, source)
    if not is_boolean(node):
        return number_as_float(source) if is_integer(source) and is_integer(node) else None
    x = source if is_float32(source) else number_as_float(source)
    return None if x is None else _unequal(at, x, 0.0)


def _compared(node: Node, at: Node) -> Node | None:
    a, b = node.args
    if any(is_integer(v) for v in (a, b)) and not any(_is_small_constant(v) for v in (a, b)):
        return None
    x, y = (_comparable(v) for v in (a, b))
    return None if x is None or y is None else _COMPARISONS[packet_name(node)](at, x, y)


def _comparable(value: Any) -> Any:
    """A float32 value, the float form of an integer, or a number."""
    if isinstance(value, Node):
        return value if is_float32(value) else number_as_float(value) if not _is_other_float(value) else None
    return float(value)


def _is_other_float(node: Node) -> bool:
    return bool(value_of(node).dtype.is_floating_point)


def _is_small_constant(value: Any) -> bool:
    tensor = torch.as_tensor(value) if not isinstance(value, Node) else constant_of(value)
    return tensor is not None and (not tensor.numel() or float(tensor.abs().max()) < _EXACT)


def _greater(at: Node, x: Any, y: Any) -> Node:
    if _is_infinite(y):
        x, y = x, max(min(y, -LOWEST), LOWEST)
    steep = in_float(at, REASON, aten.mul.Tensor, _difference(at, x, y), _STEEP)
    return in_float(at, REASON, aten.clamp.default, steep, 0.0, 1.0)


def _difference(at: Node, x: Any, y: Any) -> Node:
    if not isinstance(x, Node):
        return in_float(at, REASON, aten.add.Tensor, in_float(at, REASON, aten.neg.default, y), x)
    return x if y == 0.0 and not isinstance(y, Node) else in_float(at, REASON, aten.sub.Tensor, x, y)


def _unequal(at: Node, x: Any, y: Any) -> Node:
    """Not equal -inf: above the lowest float; inf - inf would be NaN."""
    if _is_infinite(y):
        inside = _difference(at, x, LOWEST) if y < 0 else _difference(at, -LOWEST, x)
        shifted = in_float(at, REASON, aten.mul.Tensor, in_float(at, REASON, aten.add.Tensor, inside, 1.0), _STEEP)
        return in_float(at, REASON, aten.clamp.default, shifted, 0.0, 1.0)
    size = in_float(at, REASON, aten.abs.default, _difference(at, x, y))
    return in_float(at, REASON, aten.clamp.default, in_float(at, REASON, aten.mul.Tensor, size, _STEEP), 0.0, 1.0)


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and value in (float("inf"), float("-inf"))


def negated_truth(at: Node, m: Node) -> Node:
    return in_float(at, REASON, aten.add.Tensor, in_float(at, REASON, aten.neg.default, m), 1.0)


_COMPARISONS: dict[str, Callable[[Node, Any, Any], Node]] = {
    "gt": _greater,
    "lt": lambda at, x, y: _greater(at, y, x),
    "le": lambda at, x, y: negated_truth(at, _greater(at, x, y)),
    "ge": lambda at, x, y: negated_truth(at, _greater(at, y, x)),
    "ne": _unequal,
    "eq": lambda at, x, y: negated_truth(at, _unequal(at, x, y)),
}


def _multiplied(node: Node, at: Node) -> Node | None:
    """Masks as integers."""
    a, b = (number_as_float(v) for v in node.args)
    return None if a is None or b is None else in_float(at, REASON, aten.mul.Tensor, a, b)


def _counted(node: Node, at: Node) -> Node | None:
    """How many are true: exact, since there are fewer than 2^23."""
    m = truth_as_float(node.args[0])
    return None if m is None else in_float(at, REASON, aten.sum.dim_IntList, m, *_reduced(node))


def _chosen(node: Node, at: Node) -> Node | None:
    """Booleans by a boolean."""
    condition, chosen, other = node.args if packet_name(node) == "where" else [node.args[k] for k in (1, 2, 0)]
    c, a, b = (truth_as_float(v) if isinstance(v, Node) else float(bool(v)) for v in (condition, chosen, other))  # type: ignore[arg-type]
    if None in (c, a, b):
        return None
    kept = in_float(at, REASON, aten.mul.Tensor, negated_truth(at, c), b)  # type: ignore[arg-type]
    return in_float(at, REASON, aten.add.Tensor, in_float(at, REASON, aten.mul.Tensor, c, a), kept)


def _both(node: Node, at: Node) -> Node | None:
    return _combined(node, at, aten.mul.Tensor)


def _either(node: Node, at: Node) -> Node | None:
    return _combined(node, at, aten.maximum.default)


def _combined(node: Node, at: Node, op: Any) -> Node | None:
    a, b = (truth_as_float(v) for v in node.args)
    return None if a is None or b is None else in_float(at, REASON, op, a, b)


def _not(node: Node, at: Node) -> Node | None:
    m = truth_as_float(node.args[0])
    return None if m is None else negated_truth(at, m)


def _one_of_two(node: Node, at: Node) -> Node | None:
    """xor"""
    a, b = (truth_as_float(v) for v in node.args)
    return None if a is None or b is None else _unequal(at, a, b)


def _any(node: Node, at: Node) -> Node | None:
    m = truth_as_float(node.args[0])
    return None if m is None else in_float(at, REASON, aten.amax.default, m, *_reduced(node))


def _all(node: Node, at: Node) -> Node | None:
    m = truth_as_float(node.args[0])
    if m is None:
        return None
    return negated_truth(at, in_float(at, REASON, aten.amax.default, negated_truth(at, m), *_reduced(node)))


def _reduced(node: Node) -> tuple[Any, ...]:
    """Dimensions as a list, and keepdim."""
    if len(node.args) < 2:
        return ([], False)
    dims: Any = node.args[1]
    return ([dims] if isinstance(dims, int) else list(dims or []), bool(node.args[2]) if len(node.args) > 2 else False)


_LOGICAL: dict[str, _Maker] = {
    **dict.fromkeys(("logical_and", "bitwise_and", "__and__"), _both),
    **dict.fromkeys(("logical_or", "bitwise_or", "__or__"), _either),
    **dict.fromkeys(("logical_xor", "bitwise_xor", "__xor__"), _one_of_two),
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    "any": _any,
    "all": _all,
}
