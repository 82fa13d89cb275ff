"""Helpers for FX graphs: constants, source locations, fake values, metadata."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.tensor_bytes import plain_strides

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Frames of torch (also of a source build) and of generated code are not user code.
_LIBRARY_FRAME = re.compile(r"-packages/(torch|torchao|executorch)/|/torch/(nn/|_)|^<")


_TRANSFORMED = "_changed"  # ends the name of a node whose value was rotated or scaled


def source_of(node: Node) -> str:
    """The innermost user line, e.g. `net.py:41`. Falls back to the module path, then to a line of torch."""
    lines = _lines(_frames(node))
    return user_line(node) or module_path(node) or (lines or ["?"])[-1]


def user_line(node: Node) -> str | None:
    """The innermost line that is neither torch's nor a backend's."""
    lines = _lines([f for f in _frames(node) if not _LIBRARY_FRAME.search(f[0])])
    return lines[-1] if lines else None


def _frames(node: Node) -> list[tuple[str, str]]:
    return _FRAME.findall(node.meta.get("stack_trace") or "")


def _lines(frames: list[tuple[str, str]]) -> list[str]:
    return [f"{Path(file).name}:{line}" for file, line in frames]


def nearest_source(node: Node) -> str:
    """The line of the op; of one that a pass inserted, that of the nearest op which it feeds or reads."""
    seen, level = {node}, [node]
    while level:
        found = next((line for n in level if (line := user_line(n) or module_path(n))), None)
        if found is not None:
            return found
        level = [m for m in dict.fromkeys(m for n in level for m in (*n.users, *n.all_input_nodes)) if m not in seen]
        seen.update(level)
    return source_of(node)


def module_path(node: Node) -> str:
    """Path of the submodule that created the node, e.g. `layers.3.conv`. Empty for the root module."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack.values()))[0] if stack else ""


def value_of(node: Node) -> Any:
    """The fake value of a node, or None."""
    return node.meta.get("val")


def distinct_values(nodes: Iterable[Node]) -> list[Any]:
    """The fake values of nodes, each an object of its own: operands to trace an op with.

    Tracing knows operands by identity, and nodes of equal ops may share one fake value.
    """
    seen = set[int]()

    def own(value: torch.Tensor) -> torch.Tensor:
        new = value.detach() if id(value) in seen else value
        seen.add(id(value))
        return new

    return [torch.utils._pytree.tree_map_only(torch.Tensor, own, value_of(n)) for n in nodes]


def is_float(node: Node) -> bool:
    """True for a single floating-point tensor. Only such values are quantized."""
    val = value_of(node)
    return isinstance(val, torch.Tensor) and val.dtype.is_floating_point


def is_float_op(node: Node) -> bool:
    return node.op == "call_function" and is_float(node)


def decides(node: Node) -> bool:
    """It reads floats and gives integers that say which is larger: a comparison, an argmax. A cast gives the number."""
    made = value_of(node)
    integers = isinstance(made, torch.Tensor) and not made.is_floating_point() and not made.is_complex()
    reads = node.op == "call_function" and any(map(is_float, node.all_input_nodes))
    return integers and reads and not converts(node)


def converts(node: Node) -> bool:
    """An argument of the op is the dtype of its result."""
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and any(a.name == "dtype" for a in schema.arguments)


def value_name(node: Node) -> str:
    """Name under which calibration recorded the value. A rewrite may keep the name of the node that it replaces."""
    return str(node.meta.get("ingot_value", node.name))


def get_attribute(module: torch.nn.Module, path: str) -> Any:
    """Resolve a dotted attribute path."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def constant_of(node: Node) -> torch.Tensor | None:
    """The tensor of a get_attr node, or None. State that the program writes is not a constant."""
    if node.op != "get_attr" or node.graph.owning_module is None or is_state(node):
        return None
    found = get_attribute(node.graph.owning_module, str(node.target))
    return found if isinstance(found, torch.Tensor) else None


def is_state(node: Node) -> bool:
    """True for a buffer that the program updates. Capture marks these nodes."""
    return bool(node.meta.get("ingot_state"))


def add_constant(module: GraphModule, tensor: torch.Tensor, hint: str, like: Node) -> Node:
    """Insert a new constant with a unique name before `like`, with the metadata of `like`."""
    name, tensor = fresh_name(module, hint), plain_strides(tensor.detach())
    module.register_buffer(name, tensor, persistent=True)
    with module.graph.inserting_before(like):
        node = module.graph.get_attr(name)
    node.meta = inherited_meta(like)
    node.meta["val"] = fake_like(like, tensor)
    return node


def same_constant(module: GraphModule, tensor: torch.Tensor, name: str, like: Node) -> Node:
    """Insert a node for a constant. Equal constants of the same name share one buffer."""
    name = re.sub(r"\W", "_", name)
    known = getattr(module, name, None)
    if not isinstance(known, torch.Tensor) or known.dtype != tensor.dtype or not torch.equal(known, tensor):
        return add_constant(module, tensor, name, like)
    with module.graph.inserting_before(like):
        node = module.graph.get_attr(name)
    node.meta = {**inherited_meta(like), "val": fake_like(like, tensor)}
    return node


def fresh_name(module: torch.nn.Module, hint: str) -> str:
    """An attribute name that the module does not use yet."""
    base = re.sub(r"\W", "_", hint).strip("_") or "constant"
    name, k = base, 0
    while hasattr(module, name):
        k += 1
        name = f"{base}_{k}"
    return name


def inherited_meta(node: Node) -> dict[str, Any]:
    """Source location of `node` (stack trace and module path), for a node that replaces it."""
    return {k: node.meta[k] for k in ("stack_trace", "nn_module_stack") if k in node.meta}


def fake_mode_of(module: GraphModule) -> Any:
    for node in module.graph.nodes:
        val = value_of(node)
        if hasattr(val, "fake_mode"):
            return val.fake_mode
    return None


def fake_like(node: Node, tensor: torch.Tensor) -> torch.Tensor:
    mode = fake_mode_of(node.graph.owning_module) if node.graph.owning_module is not None else None
    return mode.from_tensor(tensor.detach(), static_shapes=True) if mode is not None else tensor


def call(node_before: Node, target: Callable[..., Any], *args: Any, like: Node | None = None, **kwargs: Any) -> Node:
    """Insert `target(…)` before `node_before`. Computes its fake value and copies the source location of `like`."""
    with node_before.graph.inserting_before(node_before):
        new = node_before.graph.call_function(target, args, kwargs)
    new.meta = inherited_meta(like or node_before)
    new.meta["val"] = evaluate_fake(new)
    return new


def evaluate_fake(node: Node) -> Any:
    """Fake value of a call_function node, computed from the fake values of its operands."""
    args = torch.fx.map_arg(node.args, value_of)
    kwargs = torch.fx.map_arg(node.kwargs, value_of)
    mode = next((v.fake_mode for v in map(value_of, node.all_input_nodes) if hasattr(v, "fake_mode")), None)
    if mode is None:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]


def copy_graph_module(module: GraphModule) -> GraphModule:
    """Copy the graph; share parameters and buffers."""
    return copy.deepcopy(module, {id(t): t for t in (*module.parameters(), *module.buffers())})


def delete_unused_tensors(module: GraphModule) -> None:
    """Delete parameters and buffers that no node reads. Otherwise some of them are serialized."""
    used = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    for name in [n for n, _ in (*module.named_parameters(), *module.named_buffers()) if n not in used]:
        owner, _, leaf = name.rpartition(".")
        delattr(module.get_submodule(owner), leaf)


def copy_partial_views(module: GraphModule) -> None:
    """Give parameters and buffers that are a part of a larger memory (a slice, a chunk) memory of their own.

    Backends serialize the memory that a constant is in, from its start: of a slice they would read other numbers.
    """
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in every:
        if _is_partial_view(tensor):
            owner, _, leaf = name.rpartition(".")
            own = tensor.detach().clone()
            same: Any = torch.nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else own
            setattr(module.get_submodule(owner), leaf, same)


def _is_partial_view(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    bytes_used = tensor.numel() * tensor.element_size()
    return tensor.storage_offset() != 0 or tensor.untyped_storage().nbytes() > bytes_used


def mark_transformed(node: Node, inverse: torch.Tensor | None) -> None:
    """Rename a node whose value was rotated or scaled. `inverse` restores the original value.

    It is a matrix, or one factor per channel. None if the transform cannot be undone.
    """
    if inverse is not None:
        node.meta["ingot_inverse_transform"] = (node.name, inverse)
    node._rename(f"{node.name}{_TRANSFORMED}")


def untransformed_name(name: str) -> str:
    """The name that a node had before `mark_transformed`."""
    return name.removesuffix(_TRANSFORMED)


def undo_transform(node: Node, value: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Name and value of the node before its transform (see `mark_transformed`)."""
    if "ingot_inverse_transform" not in node.meta:
        return node.name, value
    name, inverse = node.meta["ingot_inverse_transform"]
    return name, value @ inverse if inverse.dim() == 2 else value * inverse


def is_call(node: Node, name: str) -> bool:
    """True if the node calls the op `name`, in any overload."""
    return node.op == "call_function" and getattr(node.target, "_opname", "").split("::")[-1] == name


def calls(module: GraphModule) -> Iterator[Node]:
    """The call_function nodes in order. The graph may be edited while iterating."""
    yield from [n for n in module.graph.nodes if n.op == "call_function"]


def replace(node: Node, new: Node) -> None:
    """Replace all uses of `node` by `new` and erase `node`."""
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def output_nodes(module: GraphModule) -> list[Node]:
    """The returned nodes, flattened. Returned Python numbers and None are skipped."""
    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    flat: Iterable[Any] = torch.utils._pytree.tree_leaves(out.args[0])
    return [n for n in flat if isinstance(n, Node)]


def has_symbols(shape: Iterable[Any]) -> bool:
    """True if a dimension is symbolic."""
    return any(not isinstance(d, int) for d in shape)
