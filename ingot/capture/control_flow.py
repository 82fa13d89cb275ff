"""Control flow as plain ops, before anything else reads the graph.

cond(p, f, g, x)           -> where(p, f(x), g(x))
map(f, xs), scan(f, c, xs) -> f for each element of xs, then stack
while_loop(c, f, x)        -> f as often as c holds, if that depends on constants only
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import SymTypes
from torch.utils._pytree import tree_leaves, tree_map

from ingot.core.fx import fresh_name, source_of, value_of
from ingot.errors import CaptureError

aten = torch.ops.aten
hops = torch.ops.higher_order
MAX_STEPS = 1024  # a loop of more steps is refused: each is a copy of its ops


def has_control_flow(exported: ExportedProgram) -> bool:
    return any(_is_control_flow(n) for n in exported.graph.nodes)


def _is_control_flow(node: Node) -> bool:
    """Regions without gradients or with autocast are flattened by torch."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    return "grad" not in node.target._name and "autocast" not in node.target._name


def inline_control_flow(exported: ExportedProgram) -> tuple[ExportedProgram, list[str]]:
    """A copy without control flow, and a note for each op that was inlined."""
    tensors = (*exported.state_dict.values(), *exported.constants.values())
    program = copy.deepcopy(exported, {id(t): t for t in tensors if isinstance(t, torch.Tensor)})
    inliner, notes = _Inliner(program), list[str]()
    while (node := next(filter(_is_control_flow, program.graph.nodes), None)) is not None:
        notes.append(inliner.inline(node))
    program.graph.eliminate_dead_code()
    program.graph.lint()
    program.graph_module.recompile()
    return program, notes


class _Inliner:
    def __init__(self, program: ExportedProgram) -> None:
        self.module, self.graph = program.graph_module, program.graph_module.graph
        self.fake_mode = next(v.fake_mode for v in map(value_of, self.graph.nodes) if hasattr(v, "fake_mode"))
        signature = program.graph_signature
        names = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
        written = set(signature.buffers_to_mutate.values())
        known = {**program.constants, **program.state_dict}
        self.constants = {k: known[v] for k, v in names.items() if v in known and v not in written}

    def inline(self, node: Node) -> str:
        rules: Mapping[Any, Callable[[Node], tuple[Sequence[Any], str]]] = {
            hops.cond: self._cond, hops.map_impl: self._map, hops.scan: self._scan, hops.while_loop: self._while,
        }  # fmt: skip
        rule = rules.get(node.target)
        if rule is None:
            raise _refused(node, "it is not known how it could be written with plain ops")
        results, note = rule(node)
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise _refused(node, "its results are used as a whole")
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index,arg-type]
            self.graph.erase_node(user)
        self.graph.erase_node(node)
        return f"{node.target._name} at {source_of(node)}: {note}"  # type: ignore[union-attr]

    # ---- rules: the results, and a note ----

    def _cond(self, node: Node) -> tuple[Sequence[Any], str]:
        predicate, *branches, operands = node.args
        if isinstance(predicate, bool):
            return self._body(node, branches[not predicate], operands), "only one branch is ever taken"  # type: ignore[arg-type]
        if not isinstance(predicate, Node) or isinstance(value_of(predicate), SymTypes):
            raise _refused(node, "its predicate is a size of an input, and a file runs the ops of one branch")
        whole = self._call(node, aten.reshape.default, predicate, [])
        sides = [self._body(node, branch, operands) for branch in branches]  # type: ignore[arg-type]
        chosen = [self._call(node, aten.where.self, whole, a, b) for a, b in zip(*sides, strict=True)]
        return chosen, "both branches are computed, and the result of one is taken"

    def _map(self, node: Node) -> tuple[Sequence[Any], str]:
        body, xs, rest = node.args
        count = self._steps(node, xs)
        each = [self._body(node, body, [*self._at(node, xs, i), *rest]) for i in range(count)]  # type: ignore[misc]
        return self._stacked(node, each), f"unrolled, {count} elements"

    def _scan(self, node: Node) -> tuple[Sequence[Any], str]:
        body, init, xs, rest = node.args
        carry, made, count = list(init), list[Sequence[Any]](), self._steps(node, xs)  # type: ignore[arg-type]
        for i in range(count):
            results = self._body(node, body, [*carry, *self._at(node, xs, i), *rest])  # type: ignore[misc]
            carry, ys = list(results[: len(carry)]), results[len(carry) :]
            made.append(ys)
        return [*carry, *self._stacked(node, made)], f"unrolled, {count} steps"

    def _while(self, node: Node) -> tuple[Sequence[Any], str]:
        condition, body, carried, rest = node.args
        values, steps = list(carried), 0  # type: ignore[arg-type]
        known = [self._known(v) for v in values]
        fixed = [self._known(v) for v in rest]  # type: ignore[union-attr]
        while True:
            (goes_on,) = _evaluate(self._submodule(condition), [*known, *fixed])
            if goes_on is _UNKNOWN:
                raise _refused(node, "the number of its steps depends on the inputs")
            if not bool(goes_on):
                return values, f"unrolled, {steps} steps"
            if (steps := steps + 1) > MAX_STEPS:
                raise _refused(node, f"it has more than {MAX_STEPS} steps")
            known = _evaluate(self._submodule(body), [*known, *fixed])
            made = self._body(node, body, [*values, *rest])  # type: ignore[misc]
            values = [k if isinstance(k, (int, float)) else v for k, v in zip(known, made, strict=True)]

    # ---- parts ----

    def _steps(self, node: Node, xs: Any) -> int:
        count = value_of(xs[0]).shape[0]
        if not isinstance(count, int):
            raise _refused(node, "the number of its steps is a dynamic size")
        if count > MAX_STEPS:
            raise _refused(node, f"it has {count} steps, more than {MAX_STEPS}")
        return count

    def _at(self, node: Node, xs: Any, index: int) -> list[Node]:
        return [self._call(node, aten.select.int, x, 0, index) for x in xs]

    def _stacked(self, node: Node, each: Sequence[Sequence[Any]]) -> list[Node]:
        return [self._call(node, aten.stack.default, list(ys), 0) for ys in zip(*each, strict=True)]

    def _call(self, at: Node, target: Any, *args: Any) -> Node:
        with self.graph.inserting_before(at):
            made = self.graph.call_function(target, args)
        made.meta = {k: v for k, v in at.meta.items() if k != "val"}
        with self.fake_mode:
            made.meta["val"] = target(*torch.fx.map_arg(args, value_of))
        return made

    def _submodule(self, node: Any) -> GraphModule:
        found = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return found

    def _body(self, at: Node, submodule: Any, operands: Sequence[Any]) -> list[Any]:
        """The ops of a body before `at`; returns what it returns."""
        body = self._submodule(submodule)
        known = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
        for part in body.graph.nodes:
            if part.op == "get_attr":
                known[part] = self._attribute(at, body, part)
            elif part.op == "call_function":
                known[part] = self._copied(at, part, known)
        return [known[r] if isinstance(r, Node) else r for r in tree_leaves(body.graph.output_node().args[0])]

    def _attribute(self, at: Node, body: GraphModule, part: Node) -> Node:
        name = fresh_name(self.module, str(part.target))
        setattr(self.module, name, self._of(body, part))
        with self.graph.inserting_before(at):
            made = self.graph.get_attr(name)
        made.meta = dict(part.meta)
        return made

    def _of(self, body: GraphModule, part: Node) -> Any:
        found: Any = body
        for name in str(part.target).split("."):
            found = getattr(found, name)
        return found

    def _copied(self, at: Node, part: Node, known: Mapping[Node, Any]) -> Any:
        both: Any = torch.fx.map_arg((part.args, part.kwargs), known.__getitem__)
        args, kwargs = both
        plain = not any(isinstance(a, Node) for a in tree_leaves((args, kwargs)))
        if plain and not isinstance(value_of(part), torch.Tensor):  # arithmetic on the counter of a loop
            return part.target(*args, **kwargs)  # type: ignore[operator]
        with self.graph.inserting_before(at):
            made = self.graph.create_node("call_function", part.target, args, kwargs, name=part.name)
        made.meta = dict(part.meta)
        if part.op == "call_function" and not _is_control_flow(part):
            values = tree_map(lambda a: value_of(a) if isinstance(a, Node) else a, (args, kwargs), is_leaf=_is_node)
            with self.fake_mode:
                made.meta["val"] = part.target(*values[0], **values[1])  # type: ignore[operator]
        return made

    def _known(self, value: Any) -> Any:
        """The value of a constant, or of an op on constants such as zeros(())."""
        if not isinstance(value, Node) or value.name in self.constants:
            return self.constants[value.name] if isinstance(value, Node) else value
        if value.op != "call_function":
            return _UNKNOWN
        values = {n: self._known(n) for n in value.all_input_nodes}
        return _UNKNOWN if any(v is _UNKNOWN for v in values.values()) else _result(value, values)


_UNKNOWN = object()


def _is_node(value: Any) -> bool:
    return isinstance(value, Node)


def _evaluate(body: GraphModule, operands: Sequence[Any]) -> list[Any]:
    """What the body returns, as far as it follows from the known operands."""
    graph: Graph = body.graph
    values = dict[Node, Any](zip(graph.find_nodes(op="placeholder"), operands, strict=True))
    for node in graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(body, str(node.target), _UNKNOWN)
        elif node.op == "call_function":
            read = [values[n] for n in node.all_input_nodes]
            values[node] = _UNKNOWN if any(v is _UNKNOWN for v in read) else _result(node, values)
    return [values[r] if isinstance(r, Node) else r for r in tree_leaves(graph.output_node().args[0])]


def _result(node: Node, values: Mapping[Node, Any]) -> Any:
    if _is_control_flow(node):
        return _UNKNOWN
    both: Any = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    args, kwargs = both
    with torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _refused(node: Node, why: str) -> CaptureError:
    name = getattr(node.target, "_name", str(node.target))
    return CaptureError(
        f"'{name}' cannot be cast",
        where=source_of(node),
        why=why,
        hint="make the number of steps constant, or cast the body as a model of its own and call it in your program",
    )
