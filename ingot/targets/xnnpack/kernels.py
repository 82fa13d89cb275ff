"""What XNNPACK's kernels can do, as its partitioner's configs say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import groups_of, weight_axis
from ingot.core.fx import constant_of, has_symbols, value_of
from ingot.core.shape_cache import ShapeCache
from ingot.core.symbolic_sizes import same_shape
from ingot.rewrite.computed_kernels import has_computed_kernel
from ingot.targets.base import DYNAMIC, Ability, Kernels
from ingot.targets.edge_ops import decomposed_nodes, decomposition_key
from ingot.targets.host_kernels import runs_on_host, spatial_dims
from ingot.targets.xnnpack.constraints import unsupported_by_runtime
from ingot.targets.xnnpack.partitioner_checks import partitioner_refusal

HOST_ONLY: frozenset[str] = frozenset()
FLOAT = frozenset({"float"})
BOTH = frozenset({"float", "int8"})


@dataclass(frozen=True)
class XnnpackKernels(Kernels):
    cheap_to_query: bool = True

    def ability(self, node: Node) -> Ability:
        return _ability(node)

    def fuses(self, producer: Node, consumer: Node) -> bool:
        return _fuses(producer, consumer)

    def requantizes(self, node: Node) -> bool:
        """Only the mean kernel has an output scale of its own; kernels that move or clamp have none."""
        return edge_ops(node) == ("mean.dim",)

    def weight_axis(self, node: Node) -> int | None:
        """Per output channel; a grouped transposed convolution has one scale for the whole weight."""
        axis = weight_axis(node)
        return None if axis == 1 and groups_of(node) > 1 else axis


@cache
def _configs() -> dict[str, Any]:
    """The partitioner's configs by edge op name: precisions, fused activations, constraints."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return dict(XnnpackPartitioner().target_partitioner_configs)


def _ability(node: Node) -> Ability:
    """int8 if it is one edge op with static quantization; float if the partitioner has a config for each edge op."""
    if (why := unsupported_by_runtime(node, [n for n in operands(node) if constant_of(n) is None])) is not None:
        return Ability(HOST_ONLY, why)
    names = edge_ops(node)
    missing = next((n for n in names if n not in _configs()), None)
    if missing is not None:
        return Ability(HOST_ONLY, f"XNNPACK's partitioner has no entry for {missing}")
    if (why := _refused(node, names)) is not None:
        return Ability(HOST_ONLY, why)
    if len(names) != 1:
        return Ability(FLOAT, f"it becomes {' + '.join(names) or 'nothing'}: XNNPACK has no single int8 kernel for it")
    if names[0] == "constant_pad_nd.default" and min(node.args[1], default=0) >= 0:  # type: ignore[type-var,arg-type]
        return Ability(BOTH, "int8 or float, as the op after it: an int8 pad whose reader is float does not load")
    if not _static(names[0]):
        return Ability(FLOAT, f"XNNPACK runs {names[0]} in float only")
    if (why := _unsupported_arguments(node, names[0])) is not None:
        return Ability(FLOAT, why)
    if _quantizes_inputs(names[0]) and _has_tokens(node):
        return Ability(BOTH | {DYNAMIC}, f"XNNPACK lists static and dynamic int8 for {names[0]}")
    return Ability(BOTH, f"XNNPACK lists static int8 for {names[0]}")


def _static(name: str) -> bool:
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

    return ConfigPrecisionType.STATIC_QUANT in _configs()[name].supported_precision_types()


def _quantizes_inputs(name: str) -> bool:
    """At run time, token by token. The config of convolutions lists it too; there it is per tensor, and not tried."""
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

    dynamic = ConfigPrecisionType.DYNAMIC_QUANT in _configs()[name].supported_precision_types()
    return dynamic and name == "linear.default"


def _has_tokens(node: Node) -> bool:
    """Of known sizes, some, beside one another (XNNPACK's serializer wants a dimension before the token), and of more
    than one number: torchao reduces blocks of one number over the whole tensor."""
    x = value_of(operands(node)[0])
    return not has_symbols(value_of(node).shape) and x.dim() > 1 and x.numel() > 0 and x.shape[-1] > 1


def runs_somewhere(node: Node) -> bool:
    """In the delegate, or on the host by kernels of the runtime."""
    return bool(XnnpackKernels().ability(node).runs) or runs_on_host(node, _edge_overloads(node))


def _refused(node: Node, names: tuple[str, ...]) -> str | None:
    """Constraints of the partitioner, in every precision."""
    if names == ("convolution.default",) and spatial_dims(node) not in (1, 2):
        return "XNNPACK has 1-d and 2-d convolutions only"
    if has_computed_kernel(node):
        return "XNNPACK's convolutions and linears have constant weights"
    if names == ("prelu.default",) and value_of(node).dim() != 4:
        return "XNNPACK's passes make prelu channels-last, and only four dimensions can be"
    return _edge_form(node).refusal


def _unsupported_arguments(node: Node, name: str) -> str | None:
    """Constraints that the partitioner checks while lowering, when the plan is already made."""
    if name == "mean.dim" and not _is_global_average(node):
        return "XNNPACK has an int8 mean only over the last two of four dimensions, with keepdim"
    if name == "mean.dim" and has_symbols(value_of(node.args[0]).shape):  # type: ignore[arg-type]
        return "XNNPACK's int8 mean was seen to be wrong with dynamic sizes"
    if node.kwargs.get("alpha", 1) != 1:
        return "XNNPACK adds without alpha"
    return None


def _is_global_average(node: Node) -> bool:
    x, y = value_of(node.args[0]), value_of(node)  # type: ignore[arg-type]
    return x.dim() == 4 and y.dim() == 4 and same_shape(y.shape, (*x.shape[:2], 1, 1))


@dataclass(frozen=True)
class _EdgeForm:
    """The edge ops that a node becomes, and why the partitioner refuses one of them, if it does."""

    overloads: tuple[Any, ...]
    refusal: str | None


_edge_forms = ShapeCache[_EdgeForm]()


def edge_ops(node: Node) -> tuple[str, ...]:
    """The edge ops that the node becomes, by the partitioner's names."""
    return tuple(map(_edge_name, _edge_overloads(node)))


def _edge_overloads(node: Node) -> tuple[Any, ...]:
    return _edge_form(node).overloads


def _edge_form(node: Node) -> _EdgeForm:
    return _edge_forms.get(decomposition_key(node), lambda: _find_edge_form(node))


def _find_edge_form(node: Node) -> _EdgeForm:
    """What has a config stays whole."""
    parts = [node] if _edge_name(node.target) in _configs() else decomposed_nodes(node)
    return _EdgeForm(tuple(n.target for n in parts), _partitioner_says(parts))


def _partitioner_says(parts: list[Node]) -> str | None:
    named = [(_configs().get(name), name, n) for n in parts for name in (_edge_name(n.target),)]
    found = (partitioner_refusal(config, name, n) for config, name, n in named if config is not None)
    return next((why for why in found if why is not None), None)


def _edge_name(target: Any) -> str:
    """aten.permute.default -> permute_copy.default, where the partitioner has that name."""
    name = (
        f"{target.overloadpacket.__name__}.{target._overloadname}" if hasattr(target, "overloadpacket") else str(target)
    )
    base, _, overload = name.partition(".")
    copy = f"{base}_copy.{overload}"
    return copy if copy in _configs() else name


def _fuses(producer: Node, consumer: Node) -> bool:
    """The config lists the consumer among the producer's fused ones, or a zero pad goes into a convolution."""
    ops, after = edge_ops(producer), edge_ops(consumer)
    if ops == ("constant_pad_nd.default",):
        return weight_axis(consumer) == 0 and after == ("convolution.default",) and _pads_zeros_in_space(producer)
    row = _configs().get(ops[0]) if len(ops) == 1 else None
    return len(after) == 1 and after[0] in (getattr(row, "fused_acts", None) or ())


def _pads_zeros_in_space(pad: Node) -> bool:
    amounts: Any = pad.args[1]
    space = 2 * (value_of(pad).dim() - 2)
    value = pad.args[2] if len(pad.args) > 2 else 0
    return bool(value == 0) and all(a >= 0 for a in amounts) and not any(amounts[space:])
