"""Lowering without doing the same thing dozens of times; what comes out is the same program.

ExecuTorch's passes each run the whole graph again on fake tensors and write a new graph. Nearly all of it is what the
pass before has just done, or what it did in the block before: the same op on fake tensors that look the same. Here such
a result is looked up, provenance that nothing reads is not copied, code that nobody calls is not generated, and a
decomposition that would change nothing is left out. There are no hooks for any of it, so methods are replaced for the
time of a lowering, in this file and in `deep.py` only; `stepping.py` has what becomes of one op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._export import pass_base
from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse as Torchs
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental import proxy_tensor
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from ingot.patches.decompose import opened
from ingot.patches.partitioner import deep
from ingot.patches.reemit import Known, remembering, result_of, run_unnamed, set_quickly

ALONE = RLock()  # what is replaced is the same for all threads: they take turns
# By which a pass takes part in re-tracing: one that overrides none only wants its fake tensors brought up to date.
HOOKS = (
    "call_operator", "call_getitem", "call_sym", "call_delegate", "call_submodule", "call_cond", "call_map",
    "call_while", "call_scan", "placeholder", "output", "on_attr", "inputs", "ExportInterpreter", "ExportTracer",
)  # fmt: skip


@contextmanager
def quick() -> Iterator[None]:
    """For lowering."""
    from executorch.exir.pass_base import ProxyValue
    from executorch.exir.pass_base import _ExportPassBase as Base

    known: Known = {}
    with ALONE, light(), deep(), ExitStack() as stack:
        for owner, name, new in (
            (GraphModule, "recompile", _when_called(GraphModule.recompile)),
            (ExportedProgram, "run_decompositions", _where_needed(ExportedProgram.run_decompositions)),
            (Base, "_fx", remembering(known, ProxyValue)),
            (Torchs, "_fx", _without_symbols(Torchs._fx, remembering(known, pass_base.ProxyValue))),
            (Base, "call", _in_place(Base.call, known)),
            (Base.ExportInterpreter, "run_node", run_unnamed),
            (proxy_tensor, "_should_save_eager_input_vals", lambda *_: False),  # for Inductor, which is not here
            (Base.ExportTracer, "set_metadata", set_quickly(Base.ExportTracer.set_metadata)),
        ):
            stack.enter_context(patch.object(owner, name, new))
        yield


@contextmanager
def light() -> Iterator[None]:
    """For torch's own tracing, which reads the names of inputs off the code of a module: it must be there."""
    with ALONE, patch.object(NodeSource, "__init__", _without_ancestors):
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    """For passes of our own: a graph that is edited again has no code. Who hands one on recompiles it, outside."""
    with ALONE, patch.object(GraphModule, "recompile", _when_called(GraphModule.recompile)):
        yield


def _when_called(whole: Any) -> Callable[..., None]:
    """Passes edit graphs and hand them on; hardly ever is one called."""

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        whole(self)
        return type(self).forward(self, *args, **kwargs)

    def recompile(self: Any) -> None:
        if "_wrapped_call" not in vars(type(self)):  # the first time sets the class up
            graph, self._graph = self._graph, Graph()
            whole(self)
            self._graph = graph
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
    recompile = GraphModule.recompile

    def run_decompositions(self: ExportedProgram, decomp_table: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = decomp_table is not None and not args and not kwargs
        if given and opened(self, decomp_table):
            return self
        with patch.object(GraphModule, "recompile", recompile):  # torch reads the names of inputs off the code
            return whole(self, decomp_table, *args, **kwargs)

    return run_decompositions


def _without_symbols(whole: Any, record: Any) -> Callable[..., Any]:
    """A pass of torch's own: where sizes are symbols it asks which of them an op has made."""

    def write(self: Any, *op: Any) -> Any:
        symbols = getattr(self.fake_tensor_mode, "shape_env", None)
        return (whole if symbols is not None and symbols.var_to_range else record)(self, *op)

    return write


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
    value = result_of(known, node.target, args, kwargs)
    if value is not node.meta.get("val"):
        self.tracer.set_metadata(node, value)
