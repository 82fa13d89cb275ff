"""One op after the other from an old graph into a new one, as ExecuTorch's passes do it, with little done for each.

A pass of ExecuTorch's is an interpreter: it runs every op on fake tensors and has a tracer write down what was run. For
a decoder that is a hundred thousand ops. Here a result that is known is looked up, and an op is written as a node with
arguments, without a tracer asking of each argument whether it is one of a dozen kinds that none is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node, Proxy
from torch.fx import traceback as provenance
from torch.fx.node import map_aggregate
from torch.fx.proxy import _COPY_META_FIELDS
from torch.fx.traceback import NodeSource, NodeSourceAction

from ingot.patches.memo_key import PLAIN, NoKey, key_of
from ingot.patches.partitioner import given_by

Known = dict[Any, tuple[Any, Any]]  # results, and what they were asked with: tensors are known by id, so they must live
COPIED = ("stack_trace", *_COPY_META_FIELDS)


class _Untold(Exception):
    """An argument that only a tracer can write down: a module, a tensor of its own."""


def result_of(known: Known, target: Any, args: Any, kwargs: Any) -> Any:
    """The fake result of an op."""
    try:
        key = (target, key_of(args), key_of(kwargs))
    except NoKey:
        return target(*args, **kwargs)
    if key not in known:
        is_delegate = getattr(target, "__name__", "") == "executorch_call_delegate"
        known[key] = ((args, kwargs), given_by(*args) if is_delegate else target(*args, **kwargs))
    return known[key][1]


def remembering(known: Known, value: type[Any]) -> Callable[..., Any]:
    """How a pass writes one op into its new graph."""

    def data(a: Any) -> Any:
        return a.data if isinstance(a, value) else a

    def node(a: Any) -> Any:
        if isinstance(a, value):
            return a.proxy.node
        if isinstance(a, PLAIN):
            return a
        raise _Untold

    def traced(self: Any, kind: str, target: Any, args: Any, kwargs: Any, name: str | None) -> Proxy:
        given = map_aggregate((args, kwargs), lambda a: a.proxy if isinstance(a, value) else a)
        return self.tracer.create_proxy(kind, target, *given, name=name)

    def written(self: Any, kind: str, target: Any, args: Any, kwargs: Any, name: str | None) -> Proxy:
        try:
            given = map_aggregate((args, kwargs), node)
        except _Untold:
            return traced(self, kind, target, args, kwargs, name)
        return Proxy(_node(self.tracer.graph, target, *given, name), self.tracer)

    def record(self: Any, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        known_by, is_call = map_aggregate((args, kwargs), data), kind == "call_function"
        made = result_of(known, target, *known_by) if is_call else getattr(self.interpreter, kind)(target, *known_by)
        is_op = isinstance(target, torch._ops.OpOverload)
        name = self.tracer.graph._target_to_str(target.overloadpacket.__name__) if is_op else None
        proxy = (written if is_call else traced)(self, kind, target, args, kwargs, name)
        proxy.node.meta.update(meta.data)
        self.tracer.set_metadata(proxy.node, made)
        return value(made, proxy)

    return record


def _node(graph: Any, target: Any, args: Any, kwargs: Any, name: str | None) -> Node:
    """Its arguments afterwards: on the way in each is asked whether it is a symbol."""
    node: Node = graph.create_node("call_function", target, name=name)
    node.args, now = args, provenance.get_current_meta()
    if kwargs:
        node.kwargs = kwargs
    node.meta.update({f: copy.copy(now[f]) for f in COPIED if f in now})
    return node


def run_unnamed(self: Any, n: Node) -> Any:
    """Without writing every node out as text in case of an error."""
    self.node, self.callback.node_debug_str, before = n, n.name, provenance.current_meta
    if n.meta:
        source = NodeSource(n, f"Interpreter_{type(self).__name__}", NodeSourceAction.CREATE)
        provenance.current_meta = {**n.meta, "from_node": [source]}
    try:
        return getattr(self, n.op)(n.target, *self.fetch_args_kwargs_from_env(n))
    finally:
        provenance.current_meta = before


def set_quickly(whole: Any) -> Callable[..., None]:
    def set_metadata(self: Any, node: Node, value: Any) -> None:
        if isinstance(value, FakeTensor):
            node.meta["val"], node.meta["tensor_meta"] = value, None
        else:
            whole(self, node, value)

    return set_metadata
