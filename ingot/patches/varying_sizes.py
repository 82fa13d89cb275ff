"""XNNPACK programs whose inputs may be shorter than those that they were lowered for.

Its runtime takes a slice of size 0 as the whole dimension, however long; the serializer writes the size at hand. And
its batched product reads its second operand transposed if a flag says so; the serializer adds a transpose instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ingot.patches.version_gate import patched

TRANSPOSE_B = 1  # XNN_FLAG_TRANSPOSE_B


def varying_sizes() -> AbstractContextManager[None]:
    return patched("varying_sizes")


def serialize_varying(original: Any, _session: Any) -> Callable[..., Any]:
    def serialize(graph: Any, *args: Any, **kwargs: Any) -> Any:
        _whole_dimensions(graph)
        _transposed_products(graph)
        return original(graph, *args, **kwargs)

    return serialize


def _whole_dimensions(graph: Any) -> None:
    dims = {v.xvalue_union.id_out: v.xvalue_union.dims for v in graph.xvalues if hasattr(v.xvalue_union, "dims")}
    for node in graph.xnodes:
        op = node.xnode_union
        if type(op).__name__ == "XNNStaticSlice" and op.input_id in dims:
            whole = zip(op.sizes, dims[op.input_id], strict=True)
            op.sizes = [0 if size == length else size for size, length in whole]


def _transposed_products(graph: Any) -> None:
    """bmm(a, transpose(b)) reads b itself."""
    turned = {
        op.output_id: op.input_id
        for op in (n.xnode_union for n in graph.xnodes)
        if type(op).__name__ == "XNNStaticTranspose" and list(op.perm) == [0, 2, 1]
    }
    for node in graph.xnodes:
        op = node.xnode_union
        if type(op).__name__ == "XNNBatchMatrixMultiply" and op.input2_id in turned:
            op.input2_id, op.flags = turned[op.input2_id], op.flags | TRANSPOSE_B
    read = {v for n in graph.xnodes for k, v in vars(n.xnode_union).items() if "input" in k or k == "filter_id"}
    outputs = set(graph.output_ids)
    graph.xnodes[:] = [
        n for n in graph.xnodes
        if not (n.xnode_union.__dict__.get("output_id") in turned and n.xnode_union.output_id not in read | outputs)
    ]  # fmt: skip
