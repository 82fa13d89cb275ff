"""Hides ops of extra backends from the target's passes and partitioner behind opaque calls, then restores them.

An opaque call holds the op with the dequantizes of its inputs and the quantize of its output: it reads and returns
integers. No pass decomposes it or removes its Q/DQ nodes, and the target's delegates end and begin at integers. Without
this, ExecuTorch decomposes for the first of two partitioners the ops that the second wants whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ingot.capture.inputs import memory_format_of
from ingot.core.fx import is_call, source_of, value_of
from ingot.errors import LowerError

torch.library.define("ingot::opaque", "(Tensor[] values, str key) -> Tensor")
IsOwned = Callable[[Node], bool]
EXTRA_BACKEND_OP = "ingot_extra_backend_op"  # key in the metadata of restored ops


@dataclass(frozen=True)
class OperandIndex:
    """Stands for operand number `index` among the arguments."""

    index: int


@dataclass(frozen=True)
class OpaqueOp:
    """One op, its arguments, and the qparams of the Q/DQ nodes around it."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input_qparams: tuple[tuple[Any, ...] | None, ...]  # by operand: arguments of its dequantize
    output_qparams: tuple[Any, ...] | None  # arguments of the quantize of the result
    meta: dict[str, Any] = field(repr=False)

    def __call__(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        real = [v if n is None else _dequantize(v, *n) for v, n in zip(values, self.input_qparams, strict=True)]
        made = _channels_last_like(
            values, self.op(*_bind_operands(self.args, real), **_bind_operands(self.kwargs, real))
        )
        return made if self.output_qparams is None else _quantize(made, *self.output_qparams)


def _dequantize(*args: Any) -> Any:
    return torch.ops.quantized_decomposed.dequantize_per_tensor.default(*args)


def _quantize(*args: Any) -> Any:
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(*args)


def _channels_last_like(values: Sequence[torch.Tensor], made: torch.Tensor) -> torch.Tensor:
    """Channels-last if an input is, whatever the op's own kernel returns."""
    last = made.dim() == 4 and any(memory_format_of(v) is torch.channels_last for v in values)
    return made.contiguous(memory_format=torch.channels_last) if last else made


def _bind_operands(what: Any, values: Sequence[Any]) -> Any:
    return torch.utils._pytree.tree_map_only(OperandIndex, lambda operand: values[operand.index], what)


_registry: dict[str, OpaqueOp] = {}
_count = itertools.count()


@torch.library.impl("ingot::opaque", "CompositeExplicitAutograd")
def _run(values: list[torch.Tensor], key: str) -> torch.Tensor:
    return _registry[key](values)


@contextmanager
def opaque_ops() -> Iterator[Callable[[GraphModule, IsOwned], None]]:
    """For one lowering: yields a function that replaces the owned ops of a graph by opaque calls, in place."""
    keys: list[str] = []
    try:
        yield lambda module, owns: keys.extend(_make_opaque(module, owns))
    finally:
        for key in keys:
            del _registry[key]


# ---- ops -> opaque calls ----


def _make_opaque(module: GraphModule, owns: IsOwned) -> list[str]:
    keys = [_replace_by_opaque(n) for n in list(module.graph.nodes) if n.op == "call_function" and owns(n)]
    module.graph.eliminate_dead_code()
    module.recompile()
    return keys


def _replace_by_opaque(node: Node) -> str:
    _refuse_unsupported(node)
    values, last = list(node.all_input_nodes), _output_quantizes(node)
    index: Any = lambda n: OperandIndex(values.index(n))  # noqa: E731  not an argument type that torch declares
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), index)
    reads = tuple(tuple(v.args[1:]) if is_call(v, "dequantize_per_tensor") else None for v in values)
    opaque = OpaqueOp(node.target, args, kwargs, reads, tuple(last[0].args[1:]) if last else None, dict(node.meta))
    _registry[key := f"{node.name}_{next(_count)}"] = opaque
    given = [v if n is None else v.args[0] for v, n in zip(values, reads, strict=True)]
    with node.graph.inserting_before(node):
        made = node.graph.call_function(torch.ops.ingot.opaque.default, (given, key))
    made.meta = dict((last[0] if last else node).meta)
    for old in last or [node]:
        old.replace_all_uses_with(made)
    return key


def _refuse_unsupported(node: Node) -> None:
    """An opaque call takes tensors and returns one."""
    sizes = [n for n in node.all_input_nodes if isinstance(value_of(n), (torch.SymInt, int))]
    if sizes or isinstance(value_of(node), (tuple, list)):
        why = "it has several outputs" if not sizes else f"its operand {sizes[0].name} is a symbolic size"
        hint = "leave the op to the target, or wrap it in an op with one output tensor"
        raise LowerError(f"an extra backend cannot own {node.name}", where=source_of(node), why=why, hint=hint)


def _output_quantizes(node: Node) -> list[Node]:
    """All consumers, if they are equal quantizes; else none."""
    users = list(node.users)
    alike = all(is_call(u, "quantize_per_tensor") and u.args[1:] == users[0].args[1:] for u in users)
    return users if alike else []


# ---- opaque calls -> ops ----


def is_opaque(node: Node) -> bool:
    return node.op == "call_function" and "ingot.opaque" in str(node.target)


def restore_ops(module: GraphModule) -> None:
    """Replace opaque calls by their ops, in the ATen dialect."""
    for node in [n for n in module.graph.nodes if is_opaque(n)]:
        _restore(_Emitter(node, _registry[str(node.args[1])]))
    module.recompile()


def restore_edge_ops(program: ExportedProgram) -> None:
    """Replace opaque calls by their ops, in the edge dialect."""
    from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge

    for node in [n for n in program.graph.nodes if is_opaque(n)]:
        name = node.name
        made = _restore(_Emitter(node, _registry[str(node.args[1])], aten_to_edge))
        program.graph_signature.replace_all_uses(name, made.name)  # if it is an output of the program
    program.graph_module.recompile()


@dataclass(frozen=True)
class _Emitter:
    """Inserts ops before an opaque call, each with its fake value."""

    node: Node
    opaque: OpaqueOp
    dialect: Callable[[Any], Any] | None = None

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        with self.node.graph.inserting_before(self.node):
            made = self.node.graph.call_function(self.dialect(op) if self.dialect else op, args, kwargs)
        kept = {k: v for k, v in self.opaque.meta.items() if k not in ("val", "tensor_meta")}
        given = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        made.meta = {**kept, "val": op(*given[0], **given[1]), EXTRA_BACKEND_OP: True}
        return made

    def in_layout(self, made: Node) -> Node:
        """`made` in the memory format of the opaque call."""
        wanted = self.node.meta["val"]
        if self.dialect is None or memory_format_of(wanted) is memory_format_of(made.meta["val"]):
            return made
        return self(torch.ops.dim_order_ops._clone_dim_order.default, made, dim_order=list(wanted.dim_order()))


def _restore(emit: _Emitter) -> Node:
    """Replace the opaque call by dequantizes, op, layout conversion and quantize; returns the last node."""
    ops, opaque, values = torch.ops.quantized_decomposed, emit.opaque, list(emit.node.args[0])  # type: ignore[arg-type]
    pairs = zip(values, opaque.input_qparams, strict=True)
    real = [v if n is None else emit(ops.dequantize_per_tensor.default, v, *n) for v, n in pairs]
    made = emit(opaque.op, *_bind_operands(opaque.args, real), **_bind_operands(opaque.kwargs, real))
    last = emit.in_layout(made)
    last = (
        last if opaque.output_qparams is None else emit(ops.quantize_per_tensor.default, last, *opaque.output_qparams)
    )
    emit.node.replace_all_uses_with(last)
    emit.node.graph.erase_node(emit.node)
    return last
