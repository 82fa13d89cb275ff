"""Which ops run on integers: Arm's passes fold quantize and dequantize into the ops that its quantizer has marked."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from ingot.graph import value_of
from ingot.semantics.weights import weight_axis


def mark(graph: Graph) -> None:
    """Mark every op that reads only dequantized values and whose result is quantized, as Arm's quantizer would."""
    key, note = _marks()
    for node in graph.nodes:
        if node.op == "call_function" and not is_rounding(node) and _on_integers(node):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), key: note}


def is_marked(node: Node) -> bool:
    return _marks()[0] in (node.meta.get("custom") or {})


def _marks() -> tuple[str, dict[str, object]]:
    from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo

    return ArmAnnotationInfo.CUSTOM_META_KEY, dict(ArmAnnotationInfo(quantized=True))


def _on_integers(node: Node) -> bool:
    """Planned so: a float op that is read by integers stands between the same roundings."""
    planned_float = (node.meta.get("custom") or {}).get("ingot") == "float"
    return not planned_float and _reads_integers(node) and _writes_integers(node)


def _reads_integers(node: Node) -> bool:
    read = [n for n in node.all_input_nodes if _first(n) is not None]
    return bool(read) and all(_arrives_as_integers(n) for n in read)


def _arrives_as_integers(node: Node) -> bool:
    """Dequantized, no float at all, or handed over inside one kernel (a getitem, an activation that is fused)."""
    val = _first(node)
    return is_dequantize(node) or (val is not None and not val.dtype.is_floating_point) or is_marked(node)


def _first(node: Node) -> torch.Tensor | None:
    """The value, or the first of several; None where it is no tensor."""
    val = value_of(node)
    first = val[0] if isinstance(val, (tuple, list)) and val else val
    return first if isinstance(first, torch.Tensor) else None


def _writes_integers(node: Node) -> bool:
    return bool(node.users) and all(_leaves_as_integers(node, user) for user in node.users)


def _leaves_as_integers(node: Node, user: Node) -> bool:
    if user.target is operator.getitem:
        return _writes_integers(user)
    return is_quantize(user) or _runs_inside(node, user)


def _runs_inside(producer: Node, activation: Node) -> bool:
    """The activation ends the producer's kernel: asked of the pass that does it, or for ATen what we planned so."""
    from executorch.backends.arm._passes.fuse_quantized_activation_pass import FuseQuantizedActivationPass as Fuse

    if fuses(producer, activation):
        return _writes_integers(activation)
    return bool(Fuse._is_fuseable_input(producer) and Fuse._is_fuseable_quantized_activation(activation))


def fuses(producer: Node, activation: Node) -> bool:
    """A relu at the end of a convolution or a linear (see `separate`); a clamp only at some scales, so never."""
    return weight_axis(producer) is not None and activation.target is torch.ops.aten.relu.default


def separate(graph: Graph) -> None:
    """relu(conv) whose zero is not the lowest step: store what the convolution makes, so that they are two ops.

    Arm's pass drops such a relu and moves the lower limit of the quantize to zero, and then nothing reads that limit.
    """
    for node in [n for n in graph.nodes if n.op == "call_function" and n.all_input_nodes]:
        producer, after = node.all_input_nodes[0], next(iter(node.users), node)
        if fuses(producer, node) and is_quantize(after) and after.args[2] != torch.iinfo(value_of(after).dtype).min:
            _store_between(producer, node, after)


def _store_between(producer: Node, activation: Node, after: Node) -> None:
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    with activation.graph.inserting_before(activation):
        stored = activation.graph.call_function(after.target, (producer, *after.args[1:]))  # type: ignore[arg-type]
        read = activation.graph.call_function(dequantize, (stored, *after.args[1:]))
    stored.meta, read.meta = dict(after.meta), dict(producer.meta)
    activation.replace_input_with(producer, read)


def is_quantize(node: Node) -> bool:
    return op_name(node).startswith("quantize_per")


def is_dequantize(node: Node) -> bool:
    return op_name(node).startswith("dequantize_per")


def is_rounding(node: Node) -> bool:
    return is_quantize(node) or is_dequantize(node)


def op_name(node: Node) -> str:
    """permute_copy.default, of an op of ATen or of the edge dialect."""
    name = str(getattr(node.target, "__name__", node.target))
    return name.removeprefix("aten.").removeprefix("quantized_decomposed.")
