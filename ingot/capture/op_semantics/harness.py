"""Turns a node into a function of float tensors that can be run many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from ingot.capture.op_semantics.effect import operands
from ingot.capture.op_semantics.sizes import SMALL_SIZE, concrete, shape_of, shrink_map, takes_sizes
from ingot.capture.op_semantics.tagged_values import ProbeError

ConstantLookup = Callable[[torch.fx.Node], "torch.Tensor | None"]
MAX_ELEMENTS = 1 << 25  # of all float operands; a larger probe would take gigabytes


@dataclass(frozen=True)
class ProbeConfig:
    """How to run a node: float dtype, integer values, full or reduced sizes."""

    dtype: torch.dtype | None  # None: keep the dtype of each operand
    integers: str  # "random", "small" (valid as an index into any dimension) or "zeros"
    version: int  # 0 or 1: other random integers; masks of version 1 are the complement of version 0
    shrunk: bool  # big sizes are reduced
    real_floats: bool = False  # constant float operands keep their values


@dataclass(frozen=True)
class TensorArgument:
    """A float tensor that the probe chooses, and the operand to which it belongs."""

    index: int
    operand: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Probe:
    """An op with its fixed arguments and its free float arguments."""

    target: Any
    template: Any  # (args, kwargs) with TensorArguments in place of the float tensors
    float_args: tuple[TensorArgument, ...]
    dtype: torch.dtype  # the lowest precision among the float arguments

    def run(self, floats: Sequence[torch.Tensor]) -> torch.Tensor:
        """All float outputs, flattened and concatenated as float64. Operands are copied: the op may write into them."""

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, TensorArgument):
                return floats[leaf.index].to(leaf.dtype, copy=True)
            return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = map_aggregate(self.template, fill)
        leaves = tree_leaves(self.target(*args, **kwargs))
        flat = [t.reshape(-1).double() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if not flat:
            raise ProbeError("the op returns no float tensor")
        return torch.cat(flat)


class ProbeBuilder:
    """Builds a Probe from a node. Each float tensor becomes a TensorArgument."""

    def __init__(self, node: torch.fx.Node, config: ProbeConfig, constant: ConstantLookup):
        self.node, self.config, self.constant = node, config, constant
        self.float_args: list[TensorArgument] = []
        self.operand = -1
        self.generator = torch.Generator().manual_seed(7 + config.version)
        values = [n.meta.get("val") for n in operands(node)]
        self.sizes = shrink_map([*values, node.meta.get("val")]) if config.shrunk else {}
        self.max_index = self._max_index(values)

    def build(self) -> Probe:
        target = self.node.target
        args = tuple(self._argument(a, takes_sizes(target, i)) for i, a in enumerate(self.node.args))
        kwargs = {k: self._argument(a, takes_sizes(target, k)) for k, a in self.node.kwargs.items()}
        if sum(s.numel for s in self.float_args) > MAX_ELEMENTS:
            raise ProbeError(f"more than {MAX_ELEMENTS} elements")
        dtypes = [s.dtype for s in self.float_args] or [torch.float64]
        return Probe(target, (args, kwargs), tuple(self.float_args), min(dtypes, key=lambda d: -torch.finfo(d).eps))

    def _argument(self, argument: Any, sizes: bool) -> Any:
        return map_aggregate(argument, lambda leaf: self._leaf(leaf, sizes))

    def _leaf(self, leaf: Any, sizes: bool) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return self._node(leaf, sizes)
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return self.config.dtype or leaf  # a dtype conversion is probed without its rounding, so it is MOVES
        leaf = concrete(leaf)
        return self._small_size(leaf) if self.config.shrunk and sizes and isinstance(leaf, int) else leaf

    def _small_size(self, number: int) -> int:
        """The reduced size for a big one. A big number that is no size (an offset, a diagonal) prevents reduction."""
        if number not in self.sizes and SMALL_SIZE <= abs(number) < 1 << 31:
            raise ProbeError(f"{number} is not a size: reduced shapes would give another result")
        return self.sizes.get(number, number)

    def _node(self, n: torch.fx.Node, sizes: bool) -> Any:
        self.operand += 1
        if "val" not in n.meta:
            raise ProbeError(f"operand {n.name} has no fake value")
        return map_aggregate(n.meta["val"], lambda v: self._value(n, v, sizes))

    def _value(self, n: torch.fx.Node, value: Any, sizes: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._leaf(value, sizes)
        shape = tuple(self.sizes.get(s, s) for s in shape_of(value))
        constant = self._constant_value(n, value.dtype)
        if constant is not None:
            return constant
        make = self._float_arg if value.dtype.is_floating_point else self._integers
        return make(shape, value.dtype)

    def _constant_value(self, n: torch.fx.Node, dtype: torch.dtype) -> torch.Tensor | None:
        if self.config.shrunk or (dtype.is_floating_point and not self.config.real_floats):
            return None
        known = self.constant(n)
        return None if known is None else known.detach().cpu()

    def _float_arg(self, shape: tuple[int, ...], dtype: torch.dtype) -> TensorArgument:
        arg = TensorArgument(len(self.float_args), self.operand, shape, self.config.dtype or dtype)
        self.float_args.append(arg)
        return arg

    def _integers(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_complex:
            raise ProbeError("complex operands are not supported")
        if self.config.integers == "zeros":
            return torch.zeros(shape, dtype=dtype)
        if dtype == torch.bool:
            mask = torch.rand(shape, generator=torch.Generator().manual_seed(11 + self.operand)) < 0.5
            return ~mask if self.config.version else mask
        low, high = self._integer_range()
        numbers = torch.randint(low, high, shape, generator=self.generator)
        if numbers.numel() and not self.config.version:
            numbers.view(-1)[0] = high - 1  # with only 0 or 1 an add or mul could look like an identity
        return numbers.to(dtype)

    def _integer_range(self) -> tuple[int, int]:
        return (0, self.max_index) if self.config.integers == "small" or self.max_index >= 3 else (2, 6)

    def _max_index(self, values: Sequence[Any]) -> int:
        """Integers below this bound are valid indices into every dimension of every float operand."""
        tensors = [t for v in values for t in tree_leaves(v) if isinstance(t, torch.Tensor)]
        sizes = [self.sizes.get(s, s) for t in tensors if t.dtype.is_floating_point for s in shape_of(t) if s > 0]
        return min([*sizes, 100])
