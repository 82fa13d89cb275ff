"""Products of two tensors as one equation: sum over shared labels, in the sense of einsum.

matmul, mm, bmm, mv, dot, tensordot, einsum, linear, and addmm, baddbmm, addmv, addbmm with the term that they add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import value_of

aten = torch.ops.aten
Labels = tuple[Any, ...]  # one for each dimension; equal labels are one index

# torch has no record of these equations: the schemas name operands only.
MATMULS = {aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default}
ADDED = {
    aten.addmm.default: "ik,kj->ij",
    aten.baddbmm.default: "bik,bkj->bij",
    aten.addmv.default: "ik,k->i",
    aten.addbmm.default: "bik,bkj->ij",
}


@dataclass(frozen=True)
class Product:
    """out = sum(left * right) over the labels that `out` lacks, plus `term`."""

    left: Node
    right: Node
    left_labels: Labels
    right_labels: Labels
    out: Labels
    term: Node | None = None


def product_of(node: Node) -> Product | None:
    """None if the op is no product of two tensors, or takes a diagonal of one."""
    found = _product(node)
    sides = (found.left_labels, found.right_labels, found.out) if found else ()
    return None if any(len(set(labels)) < len(labels) for labels in sides) else found


def _product(node: Node) -> Product | None:
    args: Any = node.args
    if node.target in MATMULS and not node.kwargs:
        return Product(args[0], args[1], *_matmul_labels(_shape(args[0]), _shape(args[1])))
    if node.target in ADDED and not any(node.kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
        left, right, out = _written_labels(ADDED[node.target], [args[1], args[2]])
        return Product(args[1], args[2], left, right, out, args[0])
    if node.target is aten.linear.default:
        return _linear(args)
    if node.target is aten.tensordot.default:
        return Product(args[0], args[1], *_tensordot_labels(*args))
    if node.target is aten.einsum.default and len(args[1]) == 2:
        return Product(args[1][0], args[1][1], *_written_labels(args[0], args[1]))
    return None


def _shape(node: Node) -> Sequence[Any]:
    return value_of(node).shape  # type: ignore[no-any-return]


def _linear(args: Any) -> Product:
    """A weight of one dimension gives one number for each row."""
    free = tuple(("x", d) for d in range(len(_shape(args[0])) - 1))
    channels = ("j",) * (len(_shape(args[1])) - 1)
    term = args[2] if len(args) > 2 else None
    return Product(args[0], args[1], (*free, "k"), (*channels, "k"), (*free, *channels), term)


def _matmul_labels(a: Sequence[Any], b: Sequence[Any]) -> tuple[Labels, Labels, Labels]:
    """The batch dimensions are aligned at the last one. One that is broadcast has a label of its own."""
    rows, columns = ("i",) * (len(a) > 1), ("j",) * (len(b) > 1)
    batch_a, batch_b = list(a[:-2]), list(b[:-2])
    ranks = range(max(len(batch_a), len(batch_b)), 0, -1)
    left = tuple(_batch_label("a", d, batch_a, batch_b) for d in ranks if d <= len(batch_a))
    right = tuple(_batch_label("b", d, batch_b, batch_a) for d in ranks if d <= len(batch_b))
    out = tuple(("batch", d) for d in ranks)
    return (*left, *rows, "k"), (*right, "k", *columns), (*out, *rows, *columns)


def _batch_label(side: str, d: int, own: list[Any], other: list[Any]) -> Labels:
    """A size of 1 beside a larger one is summed over: the sum has one element."""
    broadcast = own[-d] == 1 and d <= len(other) and other[-d] != 1
    return (side, d) if broadcast else ("batch", d)


def _tensordot_labels(
    a: Node, b: Node, dims_a: Sequence[int], dims_b: Sequence[int], *_: Any
) -> tuple[Labels, Labels, Labels]:
    rank_a, rank_b = len(_shape(a)), len(_shape(b))
    summed = {x % rank_a: y % rank_b for x, y in zip(dims_a, dims_b, strict=True)}
    left = tuple(("a", d) for d in range(rank_a))
    by_right = {y: ("a", x) for x, y in summed.items()}
    right = tuple(by_right.get(d, ("b", d)) for d in range(rank_b))
    out = (
        *(label for d, label in enumerate(left) if d not in summed),
        *(label for d, label in enumerate(right) if d not in by_right),
    )
    return left, right, out


def _written_labels(equation: str, operands: Sequence[Node]) -> tuple[Labels, Labels, Labels]:
    """The labels of einsum's notation; those of an ellipsis are numbers, counted from the last dimension."""
    ins, _, out = equation.replace(" ", "").partition("->")
    left, right = (tuple(_spelled(part, len(_shape(x)))) for part, x in zip(ins.split(","), operands, strict=True))
    if "->" in equation:
        dots = max((n for n in (*left, *right) if isinstance(n, int)), default=0)
        return left, right, tuple(_spelled(out, len(out.replace("...", "")) + dots))
    return left, right, _implied_output(left, right)


def _spelled(part: str, rank: int) -> Iterator[Any]:
    before, dots, after = part.partition("...")
    yield from before
    if dots:
        yield from range(rank - len(before) - len(after), 0, -1)
    yield from after


def _implied_output(left: Labels, right: Labels) -> Labels:
    every = (*left, *right)
    dots = sorted({n for n in every if isinstance(n, int)}, reverse=True)
    return (*dots, *sorted(n for n in set(every) if isinstance(n, str) and every.count(n) == 1))
