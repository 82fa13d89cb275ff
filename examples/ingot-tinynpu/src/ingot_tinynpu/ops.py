"""Which ops TinyNPU takes. The planner and the partitioner ask the same function, so their answers cannot differ."""

from __future__ import annotations

from torch.fx import Node

KERNELS = ("linear", "add", "relu", "reshape", "view")  # ExecuTorch turns each reshape into a view


def op_name(node: Node) -> str:
    """Without namespace and overload, in ATen as in ExecuTorch's edge dialect: aten::view_copy is view."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.rpartition("::")[2].removesuffix("_copy") if schema is not None else str(node.target)


def operands(node: Node) -> list[Node]:
    """In order, twice where the op reads a value twice."""
    return [a for a in node.args if isinstance(a, Node)]


def refusal(node: Node) -> str | None:
    """Why TinyNPU does not take the op; None: it does."""
    op = op_name(node)
    if op not in KERNELS:
        return f"TinyNPU has no kernel for {op}"
    if op == "add" and node.kwargs.get("alpha", 1) != 1:
        return "TinyNPU adds without a factor"
    if op == "add" and not _same_shapes(operands(node)):
        return "TinyNPU adds two tensors of one shape"
    if op == "linear" and not _is_constant(operands(node)[1]):
        return "TinyNPU needs a constant int8 weight"
    return None


def _same_shapes(tensors: list[Node]) -> bool:
    return len(tensors) == 2 and len({tuple(n.meta["val"].shape) for n in tensors}) == 1


def _is_constant(weight: Node) -> bool:
    """For the planner an attribute of the module; for the partitioner already quantized per channel."""
    return weight.op == "get_attr" or op_name(weight) == "dequantize_per_channel"


def fuses(producer: Node, activation: Node) -> bool:
    """A relu costs nothing after a linear or an add: it only raises the lower end of the clamp."""
    return op_name(activation) == "relu" and op_name(producer) in ("linear", "add")
