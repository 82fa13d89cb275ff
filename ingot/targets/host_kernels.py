"""Which ops the ExecuTorch runtime runs on the host, as its own registry says."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from torch.fx import Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import value_of


@cache
def _registered() -> frozenset[str]:
    from ingot.runtime.bindings import runtime_bindings

    return frozenset(runtime_bindings()._get_operator_names())


@cache
def has_host_kernel(op: Any) -> bool:
    """The runtime calls out variants; a view becomes a copy, of which it has every kind."""
    from executorch.exir.operator.convert import to_out_variant

    if op.is_view:
        return True
    try:
        variant, _ = to_out_variant(op)
    except (RuntimeError, AssertionError, KeyError):  # there is none
        return False
    return variant.name() in _registered() or op.name() in _registered()


def runs_on_host(node: Node, edge_ops: Iterable[Any]) -> bool:
    """The runtime has kernels for all ops that the node becomes."""
    return not _host_refuses(node) and all(map(has_host_kernel, edge_ops))


def _host_refuses(node: Node) -> bool:
    """What a registry cannot say: the kernel of convolution takes one and two dimensions only."""
    return weight_axis(node) is not None and spatial_dims(node) > 2


def spatial_dims(node: Node) -> int:
    """Of a convolution, as its weight says; 0 for a linear."""
    return int(value_of(node.args[1]).dim()) - 2  # type: ignore[arg-type]
