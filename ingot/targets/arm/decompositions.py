"""Arm's own decompositions (softmax, norms, means, divisions, scalars …), applied before planning."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.constants import fold_constants, one_constant_per_use
from ingot.capture.op_semantics import operands
from ingot.core.fx import calls, constant_of, copy_graph_module, fake_like, is_state, source_of, value_name
from ingot.errors import LowerError, first_sentence
from ingot.patches.arm import arm_pass_fixes
from ingot.targets.arm.device import Device, compile_spec
from ingot.targets.base import RewriteRule


@dataclass(frozen=True)
class ArmDecompositions:
    """op -> the ops that Arm's passes make of it before quantization; x * 2 -> x * constant."""

    device: Device
    name: str = "arm-decompositions"
    kept: frozenset[Any] = frozenset()  # ops that stay as they are

    def narrowed(self, module: GraphModule, is_right: Callable[[RewriteRule], bool]) -> RewriteRule | None:
        """Without the ops for which a pass gives other values: they stay as they are."""
        ops = list(dict.fromkeys(n.target for n in calls(module)))

        def works(visible: Sequence[Any]) -> bool:
            return is_right(replace(self, kept=frozenset(ops).difference(visible)))

        return replace(self, kept=frozenset(_failing_among(ops, works))) if works(()) else None

    def apply(self, module: GraphModule) -> list[str]:
        before = {n.name: n for n in module.graph.nodes}
        for node in before.values():
            node.meta.setdefault("ingot_value", node.name)
        counts = {n: len(operands(n)) for n in before.values() if n.op == "call_function"}
        constants = {_memory(t): value_name(n) for n in before.values() if (t := constant_of(n)) is not None}
        state = {n.target: value_name(n) for n in before.values() if is_state(n)}
        made = apply_arm_decompositions(self.device, module, self.kept)
        _mark_state(made, state)
        gone = [n for n, count in counts.items() if not _survives(n, count, made)]
        _last_keeps_value_name(made)
        _name_state(made, state)
        _name_other_values(made, constants)
        _replace_graph(module, made)
        if fold_constants(module):  # a part of a constant, of a slice assignment: torchao would fold it unplanned
            one_constant_per_use(module)
            _name_other_values(module, {})
        return [f"{n.name} ({source_of(n)})" for n in gone]


def _mark_state(module: GraphModule, names: Collection[Any]) -> None:
    """A pass that traces the graph again forgets which buffers the program writes: they would be folded."""
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target in names:
            node.meta["ingot_state"] = True


def _name_state(module: GraphModule, names: Mapping[Any, str]) -> None:
    """Retracing renames its reads too: they keep their statistics."""
    for node in module.graph.nodes:
        if is_state(node):
            node.meta["ingot_value"] = names[node.target]


def apply_arm_decompositions(device: Device, module: GraphModule, kept: Collection[Any] = ()) -> GraphModule:
    """Ops on which a pass fails stay as they are: the host may have a kernel. Passes may write into `module`."""
    before = copy_graph_module(module)
    try:
        return _run_without(device, module, hidden=kept) if kept else _run_passes(device, module)
    except Exception as e:  # a pass may raise anything
        try:
            return _run_without(device, before, hidden=[*kept, *_failing_ops(device, before)])
        except Exception:
            raise _refused(e.__cause__ or e, before) from e


def _run_passes(device: Device, module: GraphModule) -> GraphModule:
    from executorch.backends.arm._passes.arm_pass_manager import ArmPassManager

    with arm_pass_fixes():
        return ArmPassManager(compile_spec(device)).transform_for_annotation_pipeline(module)


def _run_without(device: Device, module: GraphModule, hidden: Collection[Any]) -> GraphModule:
    """The passes on a copy, without these ops."""
    from executorch.backends.arm.constants import DISALLOW_TFA_META_KEY

    module = copy_graph_module(module)
    for node in module.graph.nodes:
        node.meta.update({DISALLOW_TFA_META_KEY: True} if node.target in hidden else {})
    made = _run_passes(device, module)
    for node in made.graph.nodes:
        node.meta.pop(DISALLOW_TFA_META_KEY, None)
    return made


def _failing_ops(device: Device, module: GraphModule) -> list[Any]:
    """The ops that a pass must not touch, found by halves: errors of passes seldom name a node."""
    ops = list(dict.fromkeys(n.target for n in calls(module)))

    def works(visible: Sequence[Any]) -> bool:
        try:
            _run_without(device, module, hidden=[op for op in ops if op not in visible])
        except Exception:
            return False
        return True

    return _failing_among(ops, works) if works(()) else []


def _failing_among(ops: Sequence[Any], works: Callable[[Sequence[Any]], bool]) -> list[Any]:
    if works(ops):
        return []
    half = len(ops) // 2
    return [*_failing_among(ops[:half], works), *_failing_among(ops[half:], works)] if half else list(ops)


def _refused(error: BaseException, module: GraphModule) -> LowerError:
    """What a pass says, and the user's line of the op that it stopped at."""
    said = re.search(r"While executing %(\w+)", str(error))
    node = next((n for n in module.graph.nodes if said and n.name == said[1]), None)
    why = first_sentence(ValueError(str(error).split("While executing")[0]))
    hint = "write it with other ops, or cast for another target"
    where = None if node is None else f"{node.name} ({source_of(node)})"
    return LowerError("Arm's passes refuse the program", where=where, why=why, hint=hint)


def _survives(node: Node, count: int, made: GraphModule) -> bool:
    """The same op with the same number of operands: a scalar may have become a constant."""
    same = [n for n in made.graph.nodes if n.meta.get("ingot_value") == node.meta["ingot_value"]]
    return len(same) == 1 and same[0].target == node.target and len(operands(same[0])) == count


def _last_keeps_value_name(module: GraphModule) -> None:
    """All ops that replace an op inherit its meta data; only the last of them computes its value."""
    seen: set[str] = set()
    for node in reversed(module.graph.nodes):
        value = node.meta.get("ingot_value")
        if value in seen:
            node.meta = {k: v for k, v in node.meta.items() if k != "ingot_value"}
        elif value is not None:
            seen.add(value)


def _name_other_values(module: GraphModule, constants: dict[Any, str]) -> None:
    """Retracing renames nodes: constants are recognised by their memory, and new values get names without statistics.

    Retracing also gives constants symbolic shapes; they get their static ones back.
    """
    for node in module.graph.nodes:
        constant = constant_of(node)
        if constant is not None:
            node.meta["val"] = fake_like(node, constant)
        known = constants.get(_memory(constant)) if constant is not None else None
        node.meta.setdefault("ingot_value", known or f"arm.{node.name}")


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _replace_graph(module: GraphModule, made: GraphModule) -> None:
    if made is not module:
        every = (*made.named_buffers(remove_duplicate=False), *made.named_parameters(remove_duplicate=False))
        for name, tensor in every:  # one tensor may have several names, and nodes use each of them
            if "." not in name and not hasattr(module, name):
                module.register_buffer(name, tensor.detach())
        module.graph = made.graph
    module.recompile()
