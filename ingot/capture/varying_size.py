"""A program whose number of tokens may vary, without symbols: what two captures have in common.

The same model is captured with two numbers of tokens. A size in a view that differs between them is the number of
tokens or a multiple of it, and is left to be inferred. Any other number that differs is refused with its op.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.export import Program
from ingot.core.fx import source_of, value_of
from ingot.errors import CaptureError

VARYING = "ingot_varying_size"  # in meta["custom"]: a shape, and which of its dimensions varies
INFERRED = {torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten._unsafe_view.default}
KEPT = {torch.ops.aten.expand.default}  # -1 there: as long as it is
SAME_PLACE = {  # what rewrites insert between views: dimensions that keep their length keep their place
    torch.ops.aten.slice.Tensor, torch.ops.aten.cat.default, torch.ops.aten.neg.default, torch.ops.aten.mul.Tensor,
    torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor, torch.ops.aten.linear.default,
}  # fmt: skip


def with_varying_size(largest: Program, other: Program) -> Program:
    """`largest`, with sizes inferred where those of `other` differ."""
    _infer_sizes(largest.reference, other.reference)
    _infer_sizes(largest.module, other.module)
    return replace(largest, dynamic_shapes=None)


def _infer_sizes(module: GraphModule, other: GraphModule) -> None:
    pairs = [*zip(module.graph.nodes, other.graph.nodes, strict=False)]
    odd = next((a for a, b in pairs if (a.op, a.target) != (b.op, b.target)), None)
    if odd is not None or len(module.graph.nodes) != len(other.graph.nodes):
        raise _refused(odd or pairs[-1][0], "other ops are computed for another number of tokens")
    for node, twin in pairs:
        _mark(node, twin)
        if node.op == "get_attr":
            _refuse_other_constant(module, other, node, twin)
        node.args = tuple(
            _common(node, twin, i, a, b) for i, (a, b) in enumerate(zip(node.args, twin.args, strict=True))
        )
        if str({k: v for k, v in node.kwargs.items() if not isinstance(v, Node)}) != str(
            {k: v for k, v in twin.kwargs.items() if not isinstance(v, Node)}
        ):
            raise _refused(node, f"its arguments {dict(node.kwargs)} depend on the number of tokens")
    module.recompile()


def _mark(node: Node, twin: Node) -> None:
    """Its shape with -1 where it varies, for ops that are decomposed later: these compute their sizes anew."""
    sizes = [v.shape for n in (node, twin) if isinstance(v := n.meta.get("val"), torch.Tensor)]
    if node.op == "call_function" and len(sizes) == 2:
        varying = [i for i, (x, y) in enumerate(zip(*sizes, strict=True)) if x != y]
        if len(varying) == 1:
            node.meta["custom"] = {**(node.meta.get("custom") or {}), VARYING: (tuple(sizes[0]), varying[0])}


def _common(node: Node, twin: Node, place: int, a: Any, b: Any) -> Any:
    if isinstance(a, Node) or not isinstance(a, (list, tuple)):
        if not isinstance(a, Node) and a != b:
            raise _refused(node, f"its argument {a} depends on the number of tokens")
        return a
    if place == 1 and node.target in INFERRED | KEPT:
        sizes = value_of(node).shape, value_of(twin).shape  # an argument may be -1 already
        made = [x if x == y else -1 for x, y in zip(*sizes, strict=True)]
        if made.count(-1) > 1 and node.target in INFERRED:
            raise _refused(node, f"two of its sizes {list(a)} depend on the number of tokens")
        return made
    return type(a)(_common(node, twin, -1, x, y) for x, y in zip(a, b, strict=True))


def _refuse_other_constant(module: GraphModule, other: GraphModule, node: Node, twin: Node) -> None:
    mine, yours = (_tensor(m, str(n.target)) for m, n in ((module, node), (other, twin)))
    same_memory = mine.data_ptr() == yours.data_ptr() and mine.shape == yours.shape
    if not same_memory and (mine.shape != yours.shape or not torch.equal(mine, yours)):
        raise _refused(node, "a constant depends on the number of tokens")


def _tensor(module: GraphModule, path: str) -> torch.Tensor:
    owner, _, leaf = path.rpartition(".")
    return getattr(module.get_submodule(owner), leaf)  # type: ignore[no-any-return]


def _refused(node: Node, why: str) -> CaptureError:
    return CaptureError(
        "the model cannot take any number of tokens", where=source_of(node) or node.name, why=f"{node.target}: {why}",
        hint="kv_cache='caller' fixes the number of tokens of each method",
    )  # fmt: skip


# ---- ops that rewrites inserted ----


def infer_inserted_sizes(module: GraphModule) -> None:
    """view(x, [1, 4, 40, 8, 2]) -> view(x, [1, 4, -1, 8, 2]) where x, as captured, varies in that dimension."""
    known = dict[Node, int]()
    for node in module.graph.nodes:
        at = _varying_dimension(node, known)
        if at is None:
            continue
        known[node] = at
        if node.target in INFERRED and VARYING not in (node.meta.get("custom") or {}):
            shape = tuple(value_of(node).shape)
            node.args = (node.args[0], [-1 if i == at else d for i, d in enumerate(shape)])
            node.meta["custom"] = {**(node.meta.get("custom") or {}), VARYING: (shape, at)}
    module.recompile()


def _varying_dimension(node: Node, known: dict[Node, int]) -> int | None:
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    shape = tuple(value_of(node).shape)
    marked, at = (node.meta.get("custom") or {}).get(VARYING, (None, 0))
    if marked == shape:
        return int(at)
    source = next((n for n in node.all_input_nodes if n in known), None)
    return None if source is None else _carried(node, tuple(value_of(source).shape), known[source], shape)


def _carried(node: Node, given: tuple[int, ...], at: int, shape: tuple[int, ...]) -> int | None:
    """Where a dimension of an operand is in the result, for the ops that rewrites of views and slices insert."""
    if node.target in INFERRED:
        return _aligned(given, at, shape)
    if node.target is torch.ops.aten.permute.default:
        return [d % len(given) for d in node.args[1]].index(at)  # type: ignore[union-attr, operator]
    same = len(given) == len(shape) and given[at] == shape[at] and node.target in SAME_PLACE
    return at if same else None


def _aligned(given: tuple[int, ...], at: int, shape: tuple[int, ...]) -> int | None:
    """The dimension of a view that holds a dimension of its operand, possibly merged with its neighbours."""
    before, after = math.prod(given[:at]), math.prod(given[at + 1 :])
    for i, size in enumerate(shape):
        inside = before % max(math.prod(shape[:i]), 1) == 0 and after % max(math.prod(shape[i + 1 :]), 1) == 0
        if inside and size % given[at] == 0:
            return i
    return None
