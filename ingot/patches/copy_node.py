"""How a pass of ExecuTorch or torch copies one op from the old graph into the new one.

Such a pass is an interpreter: it runs every op on fake tensors, and a tracer records it. A decoder has a hundred
thousand ops. Here known results are looked up, and an op becomes a node without the tracer's checks of each argument.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node, Proxy
from torch.fx import traceback as provenance
from torch.fx.node import map_aggregate
from torch.fx.proxy import _COPY_META_FIELDS
from torch.fx.traceback import NodeSource, NodeSourceAction

from ingot.patches.fake_result_memo import PLAIN_TYPES, ResultMemo, memoized_result

COPIED_META = ("stack_trace", *_COPY_META_FIELDS)


class _NeedsTracer(Exception):
    """An argument that only a tracer can record: a module, or a tensor that is not a proxy."""


def memoized_fx(memo: ResultMemo, value: type[Any]) -> Callable[..., Any]:
    """Replaces `_fx`; `value` is the pass's class of proxied values."""

    def data(a: Any) -> Any:
        return a.data if isinstance(a, value) else a

    def node(a: Any) -> Any:
        if isinstance(a, value):
            return a.proxy.node
        if isinstance(a, PLAIN_TYPES):
            return a
        raise _NeedsTracer

    def traced(self: Any, kind: str, target: Any, args: Any, kwargs: Any, name: str | None) -> Proxy:
        proxied = map_aggregate((args, kwargs), lambda a: a.proxy if isinstance(a, value) else a)
        return self.tracer.create_proxy(kind, target, *proxied, name=name)

    def written(self: Any, kind: str, target: Any, args: Any, kwargs: Any, name: str | None) -> Proxy:
        try:
            nodes = map_aggregate((args, kwargs), node)
        except _NeedsTracer:
            return traced(self, kind, target, args, kwargs, name)
        return Proxy(_create_node(self.tracer.graph, target, *nodes, name), self.tracer)

    def fx(self: Any, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        values, is_call = map_aggregate((args, kwargs), data), kind == "call_function"
        run = partial(memoized_result, memo) if is_call else getattr(self.interpreter, kind)
        result = run(target, *values)
        is_op = isinstance(target, torch._ops.OpOverload)
        name = self.tracer.graph._target_to_str(target.overloadpacket.__name__) if is_op else None
        proxy = (written if is_call else traced)(self, kind, target, args, kwargs, name)
        proxy.node.meta.update(meta.data)
        self.tracer.set_metadata(proxy.node, result)
        return value(result, proxy)

    return fx


def _create_node(graph: Any, target: Any, args: Any, kwargs: Any, name: str | None) -> Node:
    """Arguments are set afterwards: `create_node` would look for symbols in each."""
    node: Node = graph.create_node("call_function", target, name=name)
    node.args, now = args, provenance.get_current_meta()
    if kwargs:
        node.kwargs = kwargs
    node.meta.update({f: copy.copy(now[f]) for f in COPIED_META if f in now})
    return node


def run_node_without_repr(_original: Any, _session: Any) -> Callable[..., Any]:
    def run_node(self: Any, n: Node) -> Any:
        self.node, self.callback.node_debug_str, before = n, n.name, provenance.current_meta
        if n.meta:
            source = NodeSource(n, f"Interpreter_{type(self).__name__}", NodeSourceAction.CREATE)
            provenance.current_meta = {**n.meta, "from_node": [source]}
        try:
            return getattr(self, n.op)(n.target, *self.fetch_args_kwargs_from_env(n))
        finally:
            provenance.current_meta = before

    return run_node


def fast_set_metadata(original: Any, _session: Any) -> Callable[..., None]:
    def set_metadata(self: Any, node: Node, value: Any) -> None:
        if isinstance(value, FakeTensor):
            node.meta["val"], node.meta["tensor_meta"] = value, None
        else:
            original(self, node, value)

    return set_metadata
