"""Lowering without doing the same thing dozens of times; what comes out is the same program.

ExecuTorch's passes each run the whole graph again on fake tensors and write a new graph. Nearly all of it is what the
pass before has just done: the same op on the very same fake tensors. Here such a result is looked up, provenance that
nothing reads is not copied, code that nobody calls is not generated, and a decomposition that would change nothing is
left out. There are no hooks for any of it, so methods are replaced for the time of a lowering, in this file only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from ingot.opening import opened

ALONE = RLock()  # what is replaced is the same for all threads: they take turns
Known = dict[Any, tuple[Any, Any]]  # results, and what they were asked with: tensors are known by id, so they must live
PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
# By which a pass takes part in re-tracing: one that overrides none only wants its fake tensors brought up to date.
HOOKS = (
    "call_operator", "call_getitem", "call_sym", "call_delegate", "call_submodule", "call_cond", "call_map",
    "call_while", "call_scan", "placeholder", "output", "on_attr", "inputs", "ExportInterpreter", "ExportTracer",
)  # fmt: skip


@contextmanager
def quick() -> Iterator[None]:
    """For lowering."""
    from executorch.exir.pass_base import _ExportPassBase as Base

    known: Known = {}
    with ALONE, light(), ExitStack() as stack:
        for owner, name, new in (
            (GraphModule, "recompile", _when_called(GraphModule.recompile)),
            (ExportedProgram, "run_decompositions", _where_needed(ExportedProgram.run_decompositions)),
            (Base, "_fx", _remembering(known)),
            (Base, "call", _in_place(Base.call, known)),
            (Base.ExportInterpreter, "run_node", _run_unnamed),
            (Base.ExportTracer, "set_metadata", _set_quickly(Base.ExportTracer.set_metadata)),
        ):
            stack.enter_context(patch.object(owner, name, new))
        yield


@contextmanager
def light() -> Iterator[None]:
    """For torch's own tracing, which reads the names of inputs off the code of a module: it must be there."""
    with ALONE, patch.object(NodeSource, "__init__", _without_ancestors):
        yield


def _when_called(whole: Any) -> Callable[..., None]:
    """Passes edit graphs and hand them on; hardly ever is one called."""

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        whole(self)
        return type(self).forward(self, *args, **kwargs)

    def recompile(self: Any) -> None:
        if "_wrapped_call" not in vars(type(self)):  # the first time sets the class up
            whole(self)
            return
        if isinstance(self._graph._codegen, _PyTreeCodeGen):
            info = self._graph._codegen.pytree_info
            self._in_spec, self._out_spec = info.in_spec, info.out_spec
        type(self).forward = compiled

    return recompile


def _without_ancestors(self: NodeSource, node: Any, pass_name: str = "", action: Any = None) -> None:
    """Where a node comes from, but not where that came from: the chain grows, and is copied whole at every step."""
    self.pass_name, self.action, self.from_node = pass_name, action if isinstance(action, list) else [action], []
    self.node_info = self.NodeInfo(node.name, str(node.target), id(node.graph)) if node else None
    self._action_string = self._dict = None


def _where_needed(whole: Any) -> Callable[..., Any]:
    """Only the ops that are taken apart are traced, each by itself; a graph with none is left as it is."""

    def run_decompositions(self: ExportedProgram, decomp_table: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = decomp_table is not None and not args and not kwargs
        return self if given and opened(self, decomp_table) else whole(self, decomp_table, *args, **kwargs)

    return run_decompositions


class _NoKey(Exception):
    """An argument by which a result cannot be looked up."""


def _key(x: Any) -> Any:
    if isinstance(x, torch.nn.Module) or (isinstance(x, FakeTensor) and x.constant is None):
        return id(x)
    if isinstance(x, PLAIN):
        return type(x), x
    if isinstance(x, list | tuple):
        return tuple(map(_key, x))
    if isinstance(x, dict):
        return tuple((k, _key(v)) for k, v in x.items())
    raise _NoKey


def _result(known: Known, target: Any, args: Any, kwargs: Any) -> Any:
    """The fake result of an op; for the same op on the same fake tensors it is the same."""
    try:
        key = (target, _key(args), _key(kwargs))
    except _NoKey:
        return target(*args, **kwargs)
    if key not in known:
        known[key] = ((args, kwargs), target(*args, **kwargs))
    return known[key][1]


def _remembering(known: Known) -> Callable[..., Any]:
    """How a pass writes one op into its new graph."""
    from executorch.exir.pass_base import ProxyValue

    def taken(what: Any, name: str) -> Any:
        return torch.fx.node.map_aggregate(what, lambda a: getattr(a, name) if isinstance(a, ProxyValue) else a)

    def record(self: Any, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        data, is_call = taken((args, kwargs), "data"), kind == "call_function"
        made = _result(known, target, *data) if is_call else getattr(self.interpreter, kind)(target, *data)
        is_op = isinstance(target, torch._ops.OpOverload)
        name = self.tracer.graph._target_to_str(target.overloadpacket.__name__) if is_op else None
        proxy = self.tracer.create_proxy(kind, target, *taken((args, kwargs), "proxy"), name=name)
        proxy.node.meta.update(meta.data)
        self.tracer.set_metadata(proxy.node, made)
        return ProxyValue(made, proxy)

    return record


def _in_place(whole: Any, known: Known) -> Callable[..., Any]:
    """A pass that has edited the graph by itself gets the same graph back, its fake tensors brought up to date."""
    from executorch.exir.pass_base import ExportPass

    def call(self: Any, graph_module: GraphModule) -> Any:
        plain = all(getattr(type(self), h, None) is getattr(ExportPass, h) for h in HOOKS)
        nodes = list(graph_module.graph.nodes)
        mode = next((v.fake_mode for n in nodes if isinstance(v := n.meta.get("val"), FakeTensor)), None)
        if not plain or mode is None or not all(map(_is_plain, nodes)):
            return whole(self, graph_module)
        mode.allow_non_fake_inputs = True
        self.tracer.fake_tensor_mode = self.fake_tensor_mode = mode
        with mode, enable_python_dispatcher():
            for node in nodes:
                if node.op == "call_function":
                    _refresh(self, node, known)
        return PassResult(graph_module, True)

    return call


def _is_plain(node: Node) -> bool:
    is_op = node.op == "call_function" and not isinstance(node.target, torch._ops.HigherOrderOperator)
    return is_op or node.op in ("placeholder", "output")


def _refresh(self: Any, node: Node, known: Known) -> None:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    value = _result(known, node.target, args, kwargs)
    if value is not node.meta.get("val"):
        self.tracer.set_metadata(node, value)


def _run_unnamed(self: Any, n: Node) -> Any:
    """Without writing every node out as text in case of an error."""
    self.node, self.callback.node_debug_str = n, n.name
    return Interpreter.run_node(self, n)


def _set_quickly(whole: Any) -> Callable[..., None]:
    def set_metadata(self: Any, node: Node, value: Any) -> None:
        if isinstance(value, FakeTensor):
            node.meta["val"], node.meta["tensor_meta"] = value, None
        else:
            whole(self, node, value)

    return set_metadata
