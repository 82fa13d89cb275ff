"""Small tools on FX graphs that every room shares: constants, sources, values."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# Frames that tell a user nothing: torch's own (also of a torch built from source) and generated code.
_TORCHS = re.compile(r"-packages/(torch|torchao|executorch)/|/torch/(nn/|_)|^<")


def source_of(node: Node) -> str:
    """The innermost line that is not torch's own, as `net.py:41`; else the module's path; else a line of torch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not _TORCHS.search(f[0])]
    lines = [f"{Path(file).name}:{line}" for file, line in own or frames]
    return lines[-1] if own else module_path(node) or (lines or ["?"])[-1]


def module_path(node: Node) -> str:
    """Where in the user's module tree the node was made, as `layers.3.conv`; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack.values()))[0] if stack else ""


def value_of(node: Node) -> Any:
    return node.meta.get("val")


def is_float(node: Node) -> bool:
    """The node is one floating-point tensor: the only kind of value that is ever quantized."""
    val = value_of(node)
    return isinstance(val, torch.Tensor) and val.dtype.is_floating_point


def value_name(node: Node) -> str:
    """What the value was recorded as: a node that a rewrite put in the place of another keeps its identity."""
    return str(node.meta.get("ingot_value", node.name))


def attribute(module: torch.nn.Module, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def constant_of(node: Node) -> torch.Tensor | None:
    """The tensor behind a get_attr node, else None. State, which the program writes, is no constant."""
    if node.op != "get_attr" or node.graph.owning_module is None or is_state(node):
        return None
    found = attribute(node.graph.owning_module, str(node.target))
    return found if isinstance(found, torch.Tensor) else None


def is_state(node: Node) -> bool:
    """A buffer that the program itself updates (marked at capture)."""
    return bool(node.meta.get("ingot_state"))


def add_constant(module: GraphModule, tensor: torch.Tensor, hint: str, like: Node) -> Node:
    """A new constant node before `like`, with a name of its own and the meta data of `like`."""
    name = fresh_name(module, hint)
    module.register_buffer(name, tensor.detach(), persistent=True)
    with module.graph.inserting_before(like):
        node = module.graph.get_attr(name)
    node.meta = inherited_meta(like)
    node.meta["val"] = fake_like(like, tensor)
    return node


def same_constant(module: GraphModule, tensor: torch.Tensor, name: str, like: Node) -> Node:
    """A new node for a constant that is stored once, under its name, however often it is asked for."""
    name = re.sub(r"\W", "_", name)
    known = getattr(module, name, None)
    if not isinstance(known, torch.Tensor) or known.dtype != tensor.dtype or not torch.equal(known, tensor):
        return add_constant(module, tensor, name, like)
    with module.graph.inserting_before(like):
        node = module.graph.get_attr(name)
    node.meta = {**inherited_meta(like), "val": fake_like(like, tensor)}
    return node


def fresh_name(module: torch.nn.Module, hint: str) -> str:
    base = re.sub(r"\W", "_", hint).strip("_") or "constant"
    name, k = base, 0
    while hasattr(module, name):
        k += 1
        name = f"{base}_{k}"
    return name


def inherited_meta(node: Node) -> dict[str, Any]:
    """What a node that replaces `node` keeps of it: where the user wrote it, not what it was."""
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


def call(node_before: Node, target: Callable[..., Any], *args: Any, like: Node | None = None) -> Node:
    """Insert `target(*args)` before `node_before`, with its fake value computed and the origin of `like`."""
    with node_before.graph.inserting_before(node_before):
        new = node_before.graph.call_function(target, args)
    new.meta = inherited_meta(like or node_before)
    new.meta["val"] = evaluate_fake(new)
    return new


def evaluate_fake(node: Node) -> Any:
    """The fake value of a call_function node from those of its operands."""
    args = torch.fx.map_arg(node.args, value_of)
    kwargs = torch.fx.map_arg(node.kwargs, value_of)
    mode = next((v.fake_mode for v in map(value_of, node.all_input_nodes) if hasattr(v, "fake_mode")), None)
    if mode is None:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]


def copied(module: GraphModule) -> GraphModule:
    """A copy to edit: nodes are new, tensors are shared."""
    return copy.deepcopy(module, {id(t): t for t in (*module.parameters(), *module.buffers())})


def drop_unused(module: GraphModule) -> None:
    """Tensors that no node reads: some of them would be in the file all the same."""
    used = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    for name in [n for n, _ in (*module.named_parameters(), *module.named_buffers()) if n not in used]:
        owner, _, leaf = name.rpartition(".")
        delattr(module.get_submodule(owner), leaf)


def now_another(node: Node, back: torch.Tensor | None) -> None:
    """Its value is not the one of that name any more; times `back`, a matrix or a factor a channel, it would be."""
    if back is not None:
        node.meta["ingot_was"] = (node.name, back)
    node._rename(f"{node.name}_changed")


def as_it_was(node: Node, value: torch.Tensor) -> tuple[str, torch.Tensor]:
    """The name and the value that it would have, had it not been changed."""
    if "ingot_was" not in node.meta:
        return node.name, value
    was, back = node.meta["ingot_was"]
    return was, value @ back if back.dim() == 2 else value * back


def is_call(node: Node, name: str) -> bool:
    """The node calls the op of that name, in whichever overload."""
    return node.op == "call_function" and getattr(node.target, "_opname", "").split("::")[-1] == name


def calls(module: GraphModule) -> Iterator[Node]:
    """The op calls of a graph, in order; safe while the graph is edited."""
    yield from [n for n in module.graph.nodes if n.op == "call_function"]


def replace(node: Node, new: Node) -> None:
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def output_nodes(module: GraphModule) -> list[Node]:
    """The returned values, flat; a returned python number or None is left out."""
    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    flat: Iterable[Any] = torch.utils._pytree.tree_leaves(out.args[0])
    return [n for n in flat if isinstance(n, Node)]


def has_symbols(shape: Iterable[Any]) -> bool:
    return any(not isinstance(d, int) for d in shape)
