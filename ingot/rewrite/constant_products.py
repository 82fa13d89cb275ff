"""sum(x * W) over any labels -> permute(reshape(linear(reshape(permute(x)), W')))  for a constant W on either side

A weight for each batch entry (one matrix a head) -> bmm(x', W') with the constant on the right. The weight has its
final order in the file: it is quantized by channel and packed once, when the program is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, value_name, value_of
from ingot.core.symbolic_sizes import reshape_argument, same_shape
from ingot.rewrite.product_equations import Labels, Product, product_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


@dataclass(frozen=True)
class _ConstantProduct:
    """out = sum(x * weight) over the labels that `out` lacks."""

    x: Node
    weight: torch.Tensor
    x_labels: Labels
    weight_labels: Labels
    out: Labels

    @property
    def batch(self) -> Labels:
        """Each entry has a weight of its own."""
        return tuple(n for n in self.out if n in self.x_labels and n in self.weight_labels)

    @property
    def free(self) -> Labels:
        return tuple(n for n in self.x_labels if n in self.out and n not in self.weight_labels)

    @property
    def channels(self) -> Labels:
        return tuple(n for n in self.out if n not in self.x_labels)

    @property
    def summed(self) -> Labels:
        return tuple(n for n in self.x_labels if n in self.weight_labels and n not in self.out)


def _rewrite(node: Node) -> Node | None:
    product = product_of(node)
    found = _with_constant(product) if product is not None else None
    if product is None or found is None or _is_plain(node, found):
        return None
    whole = product.term is None or (not found.batch and _is_bias(found, product.term))
    made = _batched(node, found) if found.batch else _linear(node, found, product.term, whole)
    return made if made is None or whole else call(node, aten.add.Tensor, made, product.term)


def _is_plain(node: Node, found: _ConstantProduct) -> bool:
    """linear(x, W) with a matrix and bmm(x, W) are already what this rule writes."""
    if node.target is not aten.linear.default and (node.target is not aten.bmm.default or not found.batch):
        return False
    weight = constant_of(node.args[1])  # type: ignore[arg-type]
    return weight is not None and weight.dim() > 1


def _with_constant(product: Product) -> _ConstantProduct | None:
    """With labels of size 1 removed from the constant, and labels along which it repeats itself."""
    sides = (product.left, product.left_labels), (product.right, product.right_labels)
    constants = [constant_of(node) for node, _ in sides]
    if (constants[0] is None) == (constants[1] is None):
        return None  # of two constants the product is folded
    (x, x_labels), (_, labels) = sides if constants[0] is None else sides[::-1]
    weight = next(c for c in constants if c is not None).detach()
    if weight.dtype != torch.float32 or value_of(x).dtype != torch.float32:
        return None
    weight, labels = _without_repetition(weight, labels, x_labels, product.out)
    found = _ConstantProduct(x, weight, x_labels, labels, product.out)
    return found if _is_complete(found) else None


def _without_repetition(weight: torch.Tensor, labels: Labels, x_labels: Labels, out: Labels) -> tuple[Any, Labels]:
    shared = [d for d, n in enumerate(labels) if n in x_labels and n in out and _repeats(weight, d)]
    alone = [d for d, n in enumerate(labels) if weight.shape[d] == 1 and n not in x_labels and n not in out]
    for d in sorted((*shared, *alone), reverse=True):
        weight, labels = weight.select(d, 0), (*labels[:d], *labels[d + 1 :])
    return weight, labels


def _repeats(weight: torch.Tensor, d: int) -> bool:
    return weight.stride(d) == 0 or bool(torch.equal(weight, weight.narrow(d, 0, 1).expand_as(weight)))


def _is_complete(found: _ConstantProduct) -> bool:
    """Every output label is in an operand, nothing is broadcast, and what only x has and is summed has size 1."""
    known = {*found.x_labels, *found.weight_labels}
    shared = [n for n in found.weight_labels if n in found.x_labels]
    if not all(same_shape([_size(found, n)], [found.weight.shape[found.weight_labels.index(n)]]) for n in shared):
        return False
    alone = [n for n in found.x_labels if n not in found.weight_labels and n not in found.out]
    only_weight = [n for n in found.weight_labels if n not in found.x_labels and n not in found.out]
    one = all(same_shape([_size(found, n)], [1]) for n in alone)
    return known >= set(found.out) and one and not only_weight and bool(found.summed)


def _size(found: _ConstantProduct, label: Any) -> Any:
    if label in found.x_labels:
        return value_of(found.x).shape[found.x_labels.index(label)]
    return found.weight.shape[found.weight_labels.index(label)]


def _sizes(found: _ConstantProduct, labels: Labels) -> list[Any]:
    return [_size(found, n) for n in labels]


def _linear(node: Node, found: _ConstantProduct, term: Node | None, whole: bool) -> Node | None:
    """`whole`: its elements are those of the result, so it has its statistics."""
    free, width = _sizes(found, found.free), math.prod(_sizes(found, found.summed))
    channels = _sizes(found, found.channels)
    shapes = ([*free, width], [*free, *channels])
    if any(reshape_argument(s) is None for s in shapes):
        return None
    weight = _ordered(found, (*found.channels, *found.summed)).reshape(math.prod(channels), width)
    rows = _arranged(node, found, (*found.free, *found.summed), shapes[0])
    bias = [term] if term is not None and _is_bias(found, term) else []
    made = call(node, aten.linear.default, rows, _constant(node, weight), *bias)
    if whole:
        made.meta["ingot_value"] = value_name(node)
    return _in_order(node, _shaped(node, made, shapes[1]), (*found.free, *found.channels), found.out)


def _is_bias(found: _ConstantProduct, term: Node) -> bool:
    """A constant vector along the one label of the weight's channels, which is the last of the output."""
    vector = constant_of(term)
    last = len(found.channels) == 1 and found.out[-1:] == found.channels
    return vector is not None and last and list(vector.shape) == _sizes(found, found.channels)


def _batched(node: Node, found: _ConstantProduct) -> Node | None:
    batch, free = math.prod(_sizes(found, found.batch)), math.prod(_sizes(found, found.free))
    width, channels = math.prod(_sizes(found, found.summed)), math.prod(_sizes(found, found.channels))
    order = (*found.batch, *found.free, *found.channels)
    shapes = ([batch, free, width], _sizes(found, order))
    if any(reshape_argument(s) is None for s in shapes):
        return None
    weight = _ordered(found, (*found.batch, *found.summed, *found.channels)).reshape(batch, width, channels)
    rows = _arranged(node, found, (*found.batch, *found.free, *found.summed), shapes[0])
    made = call(node, aten.bmm.default, rows, _constant(node, weight))
    return _in_order(node, _shaped(node, made, shapes[1]), order, found.out)


def _ordered(found: _ConstantProduct, order: Labels) -> torch.Tensor:
    return found.weight.permute([found.weight_labels.index(n) for n in order]).contiguous()


def _arranged(node: Node, found: _ConstantProduct, order: Labels, shape: Sequence[Any]) -> Node:
    """x with its labels in this order; those that only x has, of size 1, come last and disappear in the reshape."""
    rest = tuple(n for n in found.x_labels if n not in order)
    return _shaped(node, _in_order(node, found.x, found.x_labels, (*order, *rest)), list(shape))


def _in_order(node: Node, x: Node, labels: Labels, order: Labels) -> Node:
    return x if labels == order else call(node, aten.permute.default, x, [labels.index(n) for n in order])


def _shaped(node: Node, x: Node, shape: list[Any]) -> Node:
    same = same_shape(value_of(x).shape, shape)
    return x if same else call(node, aten.reshape.default, x, reshape_argument(shape))


def _constant(node: Node, weight: torch.Tensor) -> Node:
    return add_constant(node.graph.owning_module, weight.clone(), f"{node.name}_weight", node)  # type: ignore[arg-type]


RULE = Rule("constant-product-as-linear", _rewrite)
