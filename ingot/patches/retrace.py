"""Replacements for how torch and ExecuTorch trace a program again and again while they lower it.

Each pass of ExecuTorch runs the whole graph on fake tensors and writes a new one. Nearly all of this repeats the pass
before, or an equal block of the model. `copy_node.py` has what happens to one op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from ingot.patches.copy_node import memoized_fx
from ingot.patches.decompose import decompose_in_place
from ingot.patches.fake_result_memo import ResultMemo, memoized_result

_Session = dict[str, Any]
# What a pass overrides to change ops while it re-traces. A pass that overrides none only refreshes fake tensors.
RETRACE_HOOKS = (
    "call_operator", "call_getitem", "call_sym", "call_delegate", "call_submodule", "call_cond", "call_map",
    "call_while", "call_scan", "placeholder", "output", "on_attr", "inputs", "ExportInterpreter", "ExportTracer",
)  # fmt: skip


def recompile_on_call(original: Any, _session: _Session) -> Callable[..., None]:
    """Generate the code of a graph when it is first called."""

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        original(self)
        return type(self).forward(self, *args, **kwargs)

    def recompile(self: Any) -> None:
        if "_wrapped_call" not in vars(type(self)):  # the first compilation sets the class up
            graph, self._graph = self._graph, Graph()
            original(self)
            self._graph = graph
        if isinstance(self._graph._codegen, _PyTreeCodeGen):
            info = self._graph._codegen.pytree_info
            self._in_spec, self._out_spec = info.in_spec, info.out_spec
        type(self).forward = compiled

    return recompile


def source_without_history(_original: Any, _session: _Session) -> Callable[..., None]:
    """Record the node that a node was made from, but not that node's own sources."""

    def init(self: NodeSource, node: Any, pass_name: str = "", action: Any = None) -> None:
        self.pass_name, self.action, self.from_node = pass_name, action if isinstance(action, list) else [action], []
        self.node_info = self.NodeInfo(node.name, str(node.target), id(node.graph)) if node else None
        self._action_string = self._dict = None

    return init


def decompose_listed_ops(original: Any, _session: _Session) -> Callable[..., Any]:
    """Trace only the ops that the table decomposes, each by itself."""
    recompile = GraphModule.recompile

    def run_decompositions(self: ExportedProgram, decomp_table: Any = None, *args: Any, **kwargs: Any) -> Any:
        only_table = decomp_table is not None and not args and not kwargs
        if only_table and decompose_in_place(self, decomp_table):
            return self
        with patch.object(GraphModule, "recompile", recompile):  # torch reads the names of inputs from the code
            return original(self, decomp_table, *args, **kwargs)

    return run_decompositions


def never(_original: Any, _session: _Session) -> Callable[..., bool]:
    return lambda *_: False


def once(original: Callable[[], None], _session: _Session) -> Callable[[], None]:
    """Ops that are registered meanwhile are no part of a program that is being exported."""
    return functools.cache(original)


def exir_memoized_fx(_original: Any, session: _Session) -> Callable[..., Any]:
    from executorch.exir.pass_base import ProxyValue

    return memoized_fx(_memo(session), ProxyValue)


def torch_memoized_fx(original: Any, session: _Session) -> Callable[..., Any]:
    """Not with symbolic sizes: torch's own pass also records which symbols an op creates."""
    from torch._export.pass_base import ProxyValue

    memoized = memoized_fx(_memo(session), ProxyValue)

    def fx(self: Any, *op: Any) -> Any:
        symbols = getattr(self.fake_tensor_mode, "shape_env", None)
        return (original if symbols is not None and symbols.var_to_range else memoized)(self, *op)

    return fx


def _memo(session: _Session) -> ResultMemo:
    return session.setdefault("memo", {})


def refresh_in_place(original: Any, session: _Session) -> Callable[..., Any]:
    """A pass without hooks has edited the graph itself: keep the graph and refresh its fake tensors."""
    from executorch.exir.pass_base import ExportPass

    memo = _memo(session)

    def call(self: Any, graph_module: GraphModule) -> Any:
        hookless = all(getattr(type(self), h, None) is getattr(ExportPass, h) for h in RETRACE_HOOKS)
        nodes = list(graph_module.graph.nodes)
        mode = next((v.fake_mode for n in nodes if isinstance(v := n.meta.get("val"), FakeTensor)), None)
        if not hookless or mode is None or not all(map(_is_plain_op, nodes)):
            return original(self, graph_module)
        mode.allow_non_fake_inputs = True
        self.tracer.fake_tensor_mode = self.fake_tensor_mode = mode
        with mode, enable_python_dispatcher():
            for node in nodes:
                if node.op == "call_function":
                    _refresh_value(self, node, memo)
        return PassResult(graph_module, True)

    return call


def _is_plain_op(node: Node) -> bool:
    is_op = node.op == "call_function" and not isinstance(node.target, torch._ops.HigherOrderOperator)
    return is_op or node.op in ("placeholder", "output")


def _refresh_value(self: Any, node: Node, memo: ResultMemo) -> None:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    value = memoized_result(memo, node.target, args, kwargs)
    if value is not node.meta.get("val"):
        self.tracer.set_metadata(node, value)
