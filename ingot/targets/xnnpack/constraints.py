"""What XNNPACK's partitioner accepts and its runtime refuses, or computes differently: kept out of delegates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import value_of
from ingot.core.symbolic_sizes import symbolic_count
from ingot.rewrite.bilinear_resize import factors_are_ratios

NO_DIMENSIONS = "XNNPACK takes and returns no tensor without dimensions"
MAX_DIMENSIONS = 6  # XNN_MAX_TENSOR_DIMS of its header; a delegate with more does not load
TWO_UNKNOWN_SIZES = "XNNPACK infers one size of a reshape, and two are dynamic"
UNKNOWN_SIZE = "XNNPACK's slice and resize have all sizes in their arguments, and one is dynamic"
OTHER_RATIO = "XNNPACK resizes by the ratio of the sizes, and the given scale factor is another one"


def unsupported_by_runtime(node: Node, values_read: Iterable[Node]) -> str | None:
    """Why the op must stay outside; `values_read` are its operands that are no constants."""
    if any(_is_scalar(n) for n in (node, *values_read)):
        return NO_DIMENSIONS
    if any(_rank(n) > MAX_DIMENSIONS for n in (node, *values_read)):
        return f"XNNPACK's tensors have at most {MAX_DIMENSIONS} dimensions"
    name = getattr(node.target, "__name__", "")  # of edge ops too; their text is a whole schema
    if (why := _unknown_size(node, name)) is not None:
        return why
    return OTHER_RATIO if name.endswith("upsample_bilinear2d.vec") and not factors_are_ratios(node) else None


def _unknown_size(node: Node, name: str) -> str | None:
    """Ops that have sizes among their arguments in the file."""
    op, shapes = (
        name.removeprefix("aten.").split(".")[0].removesuffix("_copy"),
        [_shape(node), *map(_shape, node.all_input_nodes)],
    )
    if op in ("reshape", "view", "squeeze", "unsqueeze") and symbolic_count(shapes[0]) > 1:
        return TWO_UNKNOWN_SIZES
    if op in ("slice", "upsample_bilinear2d") and any(map(symbolic_count, shapes)):
        return UNKNOWN_SIZE
    return None


def _shape(node: Node) -> Sequence[Any]:
    val = value_of(node)
    return val.shape if isinstance(val, torch.Tensor) else ()


def _is_scalar(node: Node) -> bool:
    return _rank(node) == 0


def _rank(node: Node) -> int:
    """Dimensions of a tensor; -1 of what is none."""
    val = value_of(node)
    return val.dim() if isinstance(val, torch.Tensor) else -1


def restrict(partitioner: Any) -> None:
    """The partitioner asks these constraints too, and logs the reason as it logs its own."""
    for config in partitioner.target_partitioner_configs.values():
        config.check_constraints = _also(config.check_constraints)


def _also(check: Callable[[Node, Any], bool]) -> Callable[[Node, Any], bool]:
    def check_both(node: Node, program: Any) -> bool:
        from executorch.backends.xnnpack.partition.config.xnnpack_config import why

        reason = unsupported_by_runtime(node, _values_read(node, program))
        if reason is not None:
            why(node, reason=reason)
        return reason is None and check(node, program)

    return check_both


def _values_read(node: Node, program: Any) -> list[Node]:
    """Without parameters and other constants, which are part of the delegate."""
    inputs = set(program.graph_signature.user_inputs)
    return [n for n in node.all_input_nodes if n.op == "call_function" or (n.op == "placeholder" and n.name in inputs)]
