"""A node turned into a function of plain float tensors, ready to be run many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from ingot.capture.op_semantics.effect import operands
from ingot.capture.op_semantics.sizes import SMALL, concrete, shape_of, shrink_map, takes_sizes
from ingot.capture.op_semantics.tagged_values import Unfit

Constant = Callable[[torch.fx.Node], "torch.Tensor | None"]
TOO_BIG = 1 << 25  # elements; beyond this an experiment would take gigabytes


@dataclass(frozen=True)
class Setup:
    """One way to run a node: in which float type, on what integers, at full or small size."""

    dtype: torch.dtype | None  # None: each operand's own
    integers: str  # "random", "small" (valid as an index into any dimension) or "zeros"
    version: int  # masks of version 1 are the complement of version 0
    shrunk: bool
    real_floats: bool = False  # constant float operands keep their real values


@dataclass(frozen=True)
class TensorArgument:
    """A float tensor the experiment may choose: which operand it belongs to."""

    index: int
    operand: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Trial:
    """The op, its fixed arguments, and the slots the experiment fills."""

    target: Any
    template: Any  # (args, kwargs) with Slots in place of the float tensors
    slots: tuple[TensorArgument, ...]
    dtype: torch.dtype  # the narrowest float type used

    def run(self, floats: Sequence[torch.Tensor]) -> torch.Tensor:
        """All float outputs, end to end, as one row of float64. Operands are copied: the op may write on them."""

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, TensorArgument):
                return floats[leaf.index].to(leaf.dtype, copy=True)
            return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = map_aggregate(self.template, fill)
        leaves = tree_leaves(self.target(*args, **kwargs))
        rows = [t.reshape(-1).double() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if not rows:
            raise Unfit("it gave no float tensor")
        return torch.cat(rows)


class TrialBuilder:
    """Walks the arguments of one node and leaves a TensorArgument where a float tensor goes."""

    def __init__(self, node: torch.fx.Node, setup: Setup, constant: Constant):
        self.node, self.setup, self.constant = node, setup, constant
        self.slots: list[TensorArgument] = []
        self.operand = -1
        self.generator = torch.Generator().manual_seed(7 + setup.version)
        values = [n.meta.get("val") for n in operands(node)]
        self.sizes = shrink_map([*values, node.meta.get("val")]) if setup.shrunk else {}
        self.bound = self._bound(values)

    def build(self) -> Trial:
        target = self.node.target
        args = tuple(self._argument(a, takes_sizes(target, i)) for i, a in enumerate(self.node.args))
        kwargs = {k: self._argument(a, takes_sizes(target, k)) for k, a in self.node.kwargs.items()}
        if sum(s.numel for s in self.slots) > TOO_BIG:
            raise Unfit(f"more than {TOO_BIG} elements")
        dtypes = [s.dtype for s in self.slots] or [torch.float64]
        return Trial(target, (args, kwargs), tuple(self.slots), min(dtypes, key=lambda d: -torch.finfo(d).eps))

    def _argument(self, argument: Any, sizes: bool) -> Any:
        return map_aggregate(argument, lambda leaf: self._leaf(leaf, sizes))

    def _leaf(self, leaf: Any, sizes: bool) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return self._node(leaf, sizes)
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return self.setup.dtype or leaf  # so that a cast is seen as the move it is, without its rounding
        leaf = concrete(leaf)
        return self._size(leaf) if self.setup.shrunk and sizes and isinstance(leaf, int) else leaf

    def _size(self, number: int) -> int:
        """The small size for a big one; a big number that is no size (an offset, a diagonal) forbids to shrink."""
        if number not in self.sizes and SMALL <= abs(number) < 1 << 31:
            raise Unfit(f"{number} is no size, so small shapes would not tell")
        return self.sizes.get(number, number)

    def _node(self, n: torch.fx.Node, sizes: bool) -> Any:
        self.operand += 1
        if "val" not in n.meta:
            raise Unfit(f"operand {n.name} has no known value")
        return map_aggregate(n.meta["val"], lambda v: self._value(n, v, sizes))

    def _value(self, n: torch.fx.Node, value: Any, sizes: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._leaf(value, sizes)
        shape = tuple(self.sizes.get(s, s) for s in shape_of(value))
        real = self._real(n, value.dtype)
        if real is not None:
            return real
        return self._slot(shape, value.dtype) if value.dtype.is_floating_point else self._integers(shape, value.dtype)

    def _real(self, n: torch.fx.Node, dtype: torch.dtype) -> torch.Tensor | None:
        if self.setup.shrunk or (dtype.is_floating_point and not self.setup.real_floats):
            return None
        known = self.constant(n)
        return None if known is None else known.detach().cpu()

    def _slot(self, shape: tuple[int, ...], dtype: torch.dtype) -> TensorArgument:
        slot = TensorArgument(len(self.slots), self.operand, shape, self.setup.dtype or dtype)
        self.slots.append(slot)
        return slot

    def _integers(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_complex:
            raise Unfit("it takes complex numbers")
        if self.setup.integers == "zeros":
            return torch.zeros(shape, dtype=dtype)
        if dtype == torch.bool:
            mask = torch.rand(shape, generator=torch.Generator().manual_seed(11 + self.operand)) < 0.5
            return ~mask if self.setup.version else mask
        low, high = self._span()
        numbers = torch.randint(low, high, shape, generator=self.generator)
        if numbers.numel() and not self.setup.version:
            numbers.view(-1)[0] = high - 1  # a lone 0 or 1 would make a sum or product look like nothing
        return numbers.to(dtype)

    def _span(self) -> tuple[int, int]:
        return (0, self.bound) if self.setup.integers == "small" or self.bound >= 3 else (2, 6)

    def _bound(self, values: Sequence[Any]) -> int:
        """Integers below this are valid indices into every dimension of every float operand."""
        tensors = [t for v in values for t in tree_leaves(v) if isinstance(t, torch.Tensor)]
        sizes = [self.sizes.get(s, s) for t in tensors if t.dtype.is_floating_point for s in shape_of(t) if s > 0]
        return min([*sizes, 100])
