"""Constant folding, and one constant node per use."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.capture.op_semantics.weighted_ops import is_random
from ingot.core.fx import add_constant, calls, constant_of, get_attribute, has_symbols, is_float, value_of

# Larger results are folded if they are no larger than their operands: a transposed table, not an expanded mask.
MAX_ELEMENTS = 1 << 24

# A probe draws values of about one. Rounding to hundreds makes zeros of them; of these it does not.
MAGNITUDES = (1.0, -1e2, 1e4, -1e8)


def fold_constants(module: GraphModule) -> int:
    """f(constants) -> constant: factories, tied or parametrized weights, expanded tokens, masks, position tables."""
    known: dict[Node, Any] = {}
    for node in calls(module):
        if _foldable(node, known):
            known[node] = _evaluate(node, known)
    folded = [n for n in known if isinstance(known[n], torch.Tensor) and any(u not in known for u in n.users)]
    for node in folded:
        node.replace_all_uses_with(add_constant(module, known[node].contiguous(), node.name, node))
    return len(folded)


def _foldable(node: Node, known: dict[Node, Any]) -> bool:
    if node.target is torch.ops.aten.copy_.default or is_random(node):
        return False
    if node.all_input_nodes and all(n in known or constant_of(n) is not None for n in node.all_input_nodes):
        return _numel(node) <= _limit(node) or _has_symbolic_shape(node)
    return _numel(node) <= _limit(node) and (not node.all_input_nodes or _ignores_operands(node))


def _has_symbolic_shape(node: Node) -> bool:
    """Of a part of a constant: a pass of a backend that traced it again gave it symbols that nothing depends on."""
    val = value_of(node)
    return isinstance(val, torch.Tensor) and has_symbols(val.shape)


def _limit(node: Node) -> int:
    read = (t for n in node.all_input_nodes if (t := value_of(n)) is not None and constant_of(n) is not None)
    return max(MAX_ELEMENTS, sum(t.numel() for t in read))


def _ignores_operands(node: Node) -> bool:
    """full_like(x), new_zeros(x) …: only the shape of x is used."""
    if len(node.all_input_nodes) != 1:  # only ops with one operand can qualify; do not probe others
        return False
    shape = getattr(value_of(node.all_input_nodes[0]), "shape", ("?",))
    if has_symbols(shape) or not _creates(node):
        return False
    return all(torch.equal(_on_values(node, size), _on_values(node, 0.0)) for size in MAGNITUDES)


def _creates(node: Node) -> bool:
    """By experiment; where the result is no float, by torch's names of factories: no experiment finds a comparison."""
    if is_float(node):
        return effect_of(node, constant_of).kind is Kind.CREATES
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")


def _on_values(node: Node, size: float) -> torch.Tensor:
    """The result where all elements of the operand are `size`."""
    value = value_of(node.all_input_nodes[0])
    given = torch.full(value.shape, size).to(value.dtype)
    args, kwargs = torch.fx.map_arg(node.args, lambda _: given), torch.fx.map_arg(node.kwargs, lambda _: given)
    with torch.no_grad():
        found = node.target(*args, **kwargs)  # type: ignore[operator]
    if "empty" in str(node.target) or not isinstance(found, torch.Tensor):
        return torch.zeros(())
    return torch.nan_to_num(found) if found.is_floating_point() else found  # NaN is equal to itself here


def _numel(node: Node) -> int:
    """Number of elements. Above MAX_ELEMENTS where it is unknown (symbolic shape, no fake value), so not folded."""
    val = value_of(node)
    tensors = [v for v in (val if isinstance(val, (tuple, list)) else [val]) if isinstance(v, torch.Tensor)]
    if any(not isinstance(d, int) for t in tensors for d in t.shape) or isinstance(val, (torch.SymInt, torch.SymBool)):
        return MAX_ELEMENTS + 1
    return sum(t.numel() for t in tensors)


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    def real(n: Node) -> Any:
        if n in known:
            return known[n]
        constant = constant_of(n)
        return torch.zeros(value_of(n).shape, dtype=value_of(n).dtype) if constant is None else constant

    with torch.no_grad():
        args, kwargs = torch.fx.map_arg(node.args, real), torch.fx.map_arg(node.kwargs, real)
        value = node.target(*args, **kwargs)  # type: ignore[operator]
    # Uninitialized memory would differ between runs and affect ranges.
    return torch.zeros_like(value) if "empty" in str(node.target) else value


def one_constant_per_use(module: GraphModule) -> int:
    """f(c), g(c) -> f(c1), g(c2): one node and one attribute per use. The memory stays shared."""
    return sum(_copy_per_use(module, node) for node in list(module.graph.nodes) if node.op == "get_attr")


def _copy_per_use(module: GraphModule, node: Node) -> int:
    users = list(node.users)
    if len(users) < 2 or constant_of(node) is None:
        return 0
    for user in users[1:]:
        copy = add_constant(module, get_attribute(module, str(node.target)), str(node.target), node)
        copy.meta["val"] = node.meta.get("val", copy.meta["val"])
        user.replace_input_with(node, copy)
    return len(users) - 1
