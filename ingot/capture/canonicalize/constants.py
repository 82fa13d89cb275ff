"""Constants: folded where everything they depend on is known, and never shared between two readers."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.capture.op_semantics.weighted_ops import is_random
from ingot.core.fx import add_constant, attribute, calls, constant_of, has_symbols, value_of

# A constant that grows beyond this by being spelled out (an expanded mask, a broadcast table) stays an op.
MOST_ELEMENTS = 1 << 24


def fold_constants(module: GraphModule) -> int:
    """f(constants) -> constant. Factories, tied or parametrised weights, expanded tokens, masks, position tables."""
    known: dict[Node, Any] = {}
    for node in calls(module):
        if _foldable(node, known):
            known[node] = _evaluate(node, known)
    kept = [n for n in known if isinstance(known[n], torch.Tensor) and any(u not in known for u in n.users)]
    for node in kept:
        node.replace_all_uses_with(add_constant(module, known[node].contiguous(), node.name, node))
    return len(kept)


def _foldable(node: Node, known: dict[Node, Any]) -> bool:
    if node.target is torch.ops.aten.copy_.default or is_random(node) or _size(node) > MOST_ELEMENTS:
        return False
    given = all(n in known or constant_of(n) is not None for n in node.all_input_nodes)
    return given or _ignores_operands(node)


def _ignores_operands(node: Node) -> bool:
    """full_like(x), new_zeros(x) …: the shape of x matters, its numbers do not."""
    if len(node.all_input_nodes) != 1:  # such an op takes one tensor for its shape; others need no experiment
        return False
    shape = getattr(value_of(node.all_input_nodes[0]), "shape", ("?",))
    return not has_symbols(shape) and effect_of(node, constant_of).kind is Kind.CREATES


def _size(node: Node) -> int:
    """Elements of the value, or too many to fold where that is not known (a symbolic shape, no fake value)."""
    val = value_of(node)
    tensors = [v for v in (val if isinstance(val, (tuple, list)) else [val]) if isinstance(v, torch.Tensor)]
    if any(not isinstance(d, int) for t in tensors for d in t.shape) or isinstance(val, (torch.SymInt, torch.SymBool)):
        return MOST_ELEMENTS + 1
    return sum(t.numel() for t in tensors)


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    def real(n: Node) -> Any:
        if n in known:
            return known[n]
        constant = constant_of(n)
        return torch.zeros(value_of(n).shape, dtype=value_of(n).dtype) if constant is None else constant

    with torch.no_grad():
        args, kwargs = torch.fx.map_arg(node.args, real), torch.fx.map_arg(node.kwargs, real)
        made = node.target(*args, **kwargs)  # type: ignore[operator]
    # Memory that nobody wrote holds whatever was there: as a constant it would set ranges, another one in each run.
    return torch.zeros_like(made) if "empty" in str(node.target) else made


def one_constant_per_use(module: GraphModule) -> int:
    """Two readers of one constant get a node and an attribute each; the storage stays shared."""
    return sum(_split(module, node) for node in list(module.graph.nodes) if node.op == "get_attr")


def _split(module: GraphModule, node: Node) -> int:
    users = list(node.users)
    if len(users) < 2 or constant_of(node) is None:
        return 0
    for user in users[1:]:
        copy = add_constant(module, attribute(module, str(node.target)), str(node.target), node)
        copy.meta["val"] = node.meta.get("val", copy.meta["val"])
        user.replace_input_with(node, copy)
    return len(users) - 1
