"""An op of another backend, closed while the target's passes and partitioner look at the program, then opened again.

Closed, the op and the roundings beside it are one opaque call that reads and gives integers: nothing takes it apart,
nothing takes its quantize and dequantize away, and the target's delegates end and begin at the integers. ExecuTorch
itself takes apart for the first of two partitioners what the second wanted whole.
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

torch.library.define("ingot::closed", "(Tensor[] values, str key) -> Tensor")
IsOwned = Callable[[Node], bool]
EXTRA_BACKEND_OP = "ingot_owned"  # in the meta data of what was opened again


@dataclass(frozen=True)
class OperandIndex:
    """Where the op reads its value number `index`."""

    index: int


@dataclass(frozen=True)
class OpaqueOp:
    """One op: how it is called, and the numbers of the roundings beside it."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[tuple[Any, ...] | None, ...]  # by value: the numbers by which it is dequantized
    gives: tuple[Any, ...] | None  # the numbers by which the result is quantized
    meta: dict[str, Any] = field(repr=False)

    def __call__(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        real = [v if n is None else _dequantize(v, *n) for v, n in zip(values, self.reads, strict=True)]
        made = _channels_last_like(
            values, self.op(*_bind_operands(self.args, real), **_bind_operands(self.kwargs, real))
        )
        return made if self.gives is None else _quantize(made, *self.gives)


def _dequantize(*args: Any) -> Any:
    return torch.ops.quantized_decomposed.dequantize_per_tensor.default(*args)


def _quantize(*args: Any) -> Any:
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(*args)


def _channels_last_like(values: Sequence[torch.Tensor], made: torch.Tensor) -> torch.Tensor:
    """An image that is made of channels-last images is one too, whatever the op's own kernel does."""
    last = made.dim() == 4 and any(memory_format_of(v) is torch.channels_last for v in values)
    return made.contiguous(memory_format=torch.channels_last) if last else made


def _bind_operands(what: Any, values: Sequence[Any]) -> Any:
    return torch.utils._pytree.tree_map_only(OperandIndex, lambda hole: values[hole.index], what)


_registry: dict[str, OpaqueOp] = {}
_count = itertools.count()


@torch.library.impl("ingot::closed", "CompositeExplicitAutograd")
def _run(values: list[torch.Tensor], key: str) -> torch.Tensor:
    return _registry[key](values)


@contextmanager
def opaque_ops() -> Iterator[Callable[[GraphModule, IsOwned], None]]:
    """For the time of one lowering, what closes every op that somebody else owns, in place."""
    keys: list[str] = []
    try:
        yield lambda module, owns: keys.extend(_make_opaque(module, owns))
    finally:
        for key in keys:
            del _registry[key]


# ---- closing ----


def _make_opaque(module: GraphModule, owns: IsOwned) -> list[str]:
    keys = [_replace_by_opaque(n) for n in list(module.graph.nodes) if n.op == "call_function" and owns(n)]
    module.graph.eliminate_dead_code()
    module.recompile()
    return keys


def _replace_by_opaque(node: Node) -> str:
    _refuse_unsupported(node)
    values, last = list(node.all_input_nodes), _output_quantizes(node)
    hole: Any = lambda n: OperandIndex(values.index(n))  # noqa: E731  torch types what may stand in a graph
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), hole)
    reads = tuple(tuple(v.args[1:]) if is_call(v, "dequantize_per_tensor") else None for v in values)
    closed = OpaqueOp(node.target, args, kwargs, reads, tuple(last[0].args[1:]) if last else None, dict(node.meta))
    _registry[key := f"{node.name}_{next(_count)}"] = closed
    given = [v if n is None else v.args[0] for v, n in zip(values, reads, strict=True)]
    with node.graph.inserting_before(node):
        made = node.graph.call_function(torch.ops.ingot.closed.default, (given, key))
    made.meta = dict((last[0] if last else node).meta)
    for old in last or [node]:
        old.replace_all_uses_with(made)
    return key


def _refuse_unsupported(node: Node) -> None:
    """A closed op is called with tensors and gives one."""
    sizes = [n for n in node.all_input_nodes if isinstance(value_of(n), (torch.SymInt, int))]
    if sizes or isinstance(value_of(node), (tuple, list)):
        why = "it gives several values" if not sizes else f"{sizes[0].name} is a size that is known only at run time"
        hint = "leave the op to the target, or wrap it in one that gives one tensor"
        raise LowerError(f"another backend cannot own {node.name}", where=source_of(node), why=why, hint=hint)


def _output_quantizes(node: Node) -> list[Node]:
    """The quantizes that are all its readers, and alike; none where somebody reads the float."""
    users = list(node.users)
    alike = all(is_call(u, "quantize_per_tensor") and u.args[1:] == users[0].args[1:] for u in users)
    return users if alike else []


# ---- opening ----


def is_opaque(node: Node) -> bool:
    return node.op == "call_function" and "ingot.closed" in str(node.target)


def restore_ops(module: GraphModule) -> None:
    """Back to the ops, in the dialect they were closed in."""
    for node in [n for n in module.graph.nodes if is_opaque(n)]:
        _restore(_Emitter(node, _registry[str(node.args[1])]))
    module.recompile()


def restore_edge_ops(program: ExportedProgram) -> None:
    """Back to the ops, as ExecuTorch's edge dialect writes them."""
    from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge

    for node in [n for n in program.graph.nodes if is_opaque(n)]:
        name = node.name
        made = _restore(_Emitter(node, _registry[str(node.args[1])], aten_to_edge))
        program.graph_signature.replace_all_uses(name, made.name)  # where it is an output of the program
    program.graph_module.recompile()


@dataclass(frozen=True)
class _Emitter:
    """Writes ops in place of a closed one, each with its value."""

    node: Node
    closed: OpaqueOp
    dialect: Callable[[Any], Any] | None = None

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        with self.node.graph.inserting_before(self.node):
            made = self.node.graph.call_function(self.dialect(op) if self.dialect else op, args, kwargs)
        kept = {k: v for k, v in self.closed.meta.items() if k not in ("val", "tensor_meta")}
        given = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        made.meta = {**kept, "val": op(*given[0], **given[1]), EXTRA_BACKEND_OP: True}
        return made

    def laid_out(self, made: Node) -> Node:
        """As the closed op gave it."""
        wanted = self.node.meta["val"]
        if self.dialect is None or memory_format_of(wanted) is memory_format_of(made.meta["val"]):
            return made
        return self(torch.ops.dim_order_ops._clone_dim_order.default, made, dim_order=list(wanted.dim_order()))


def _restore(emit: _Emitter) -> Node:
    """The op with the roundings beside it and its layout, in place of the closed one: what takes its place."""
    ops, closed, values = torch.ops.quantized_decomposed, emit.closed, list(emit.node.args[0])  # type: ignore[arg-type]
    read = zip(values, closed.reads, strict=True)
    real = [v if n is None else emit(ops.dequantize_per_tensor.default, v, *n) for v, n in read]
    made = emit(closed.op, *_bind_operands(closed.args, real), **_bind_operands(closed.kwargs, real))
    last = emit.laid_out(made)
    last = last if closed.gives is None else emit(ops.quantize_per_tensor.default, last, *closed.gives)
    emit.node.replace_all_uses_with(last)
    emit.node.graph.erase_node(emit.node)
    return last
