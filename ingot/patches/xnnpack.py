"""XNNPACK: skip two passes that export patterns of their own where the graph cannot match them; repair its layouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node
from torch.fx.passes.infra.pass_base import PassResult

from ingot.patches.version_gate import patched


@contextmanager
def xnnpack_pass_fixes() -> Iterator[None]:
    with patched("xnnpack"), patched("xnnpack_layouts"):
        yield


def only_with_softmax(original: Any, _session: Any) -> Any:
    return _only_if_present("_softmax", original)


def only_with_index(original: Any, _session: Any) -> Any:
    return _only_if_present("index", original)


def _only_if_present(op: str, original: Any) -> Any:
    def call(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        if any(op in str(n.target) for n in graph_module.graph.nodes if n.op == "call_function"):
            return original(self, graph_module)
        return PassResult(graph_module, False)

    return call


# ---- layouts ----


def is_channels_last(original: Any, _session: Any) -> Any:
    def is_nhwc(node: Node) -> bool:
        read = _quantized_input(node)
        return bool(original(node)) if read is None else _has_channels_last(read.meta["val"])

    return staticmethod(is_nhwc)


def is_contiguous(original: Any, _session: Any) -> Any:
    def is_nchw(node: Node) -> bool:
        read = _quantized_input(node)
        return bool(original(node)) if read is None else not _has_channels_last(read.meta["val"])

    return staticmethod(is_nchw)


# Kernels that read numbers along the last axis: contiguous memory, whatever their producer prefers. A copy between a
# dynamic dequantize and its linear would hide that the linear's input is quantized.
LAST_AXIS_OPS = ("_softmax", "choose_qparams_affine", "quantize_affine")


def or_works_on_last_axis(original: Any, _session: Any) -> Any:
    def requires(self: Any, node: Node) -> bool:
        return bool(original(self, node)) or any(op in str(node.target) for op in LAST_AXIS_OPS)

    return requires


# ---- convolutions in one dimension ----


def only_around_integer_convolutions(original: Any, _session: Any) -> Any:
    """`anchor` is the new unsqueeze before a convolution, or the convolution itself, followed by a new squeeze."""

    def insert_q_dq_pair(self: Any, graph: Any, anchor: Node, q_params: Any) -> None:
        if _is_kernel_boundary(anchor):
            original(self, graph, anchor, q_params)

    return insert_q_dq_pair


def _is_kernel_boundary(anchor: Node) -> bool:
    """The conversions next to it are part of integer kernels: none of them is a kernel of its own."""
    from executorch.backends.xnnpack.utils.quant_utils import is_tagged_as_implicit_q_dq as is_part_of_kernel

    if "unsqueeze" in str(anchor.target):
        return is_part_of_kernel(anchor.all_input_nodes[0])
    return all(is_part_of_kernel(quantize) for squeeze in anchor.users for quantize in squeeze.users)


def _quantized_input(node: Node) -> Node | None:
    """x of dequantize(quantize(x)) where x is an input."""
    if "dequantize" not in str(node.target) or not node.args or not isinstance(quantize := node.args[0], Node):
        return None  # a placeholder may have that name
    read = quantize.args[0] if "quantize" in str(quantize.target) and quantize.args else None
    return read if isinstance(read, Node) and read.op == "placeholder" else None


def _has_channels_last(val: torch.Tensor) -> bool:
    return val.dim() == 4 and not val.is_contiguous() and val.is_contiguous(memory_format=torch.channels_last)
