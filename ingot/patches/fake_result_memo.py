"""Results of ops on fake tensors, remembered: equal arguments give an equal result."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

PLAIN_TYPES = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
# By key: the arguments and the result. Keys hold ids of tensors, so the arguments must stay alive.
ResultMemo = dict[Any, tuple[Any, Any]]


class UnkeyableArgument(Exception):
    """An argument of a type that has no key."""


def memoized_result(memo: ResultMemo, target: Any, args: Any, kwargs: Any) -> Any:
    """The fake result of an op."""
    try:
        key = (target, memo_key(args), memo_key(kwargs))
    except UnkeyableArgument:
        return target(*args, **kwargs)
    if key not in memo:
        is_delegate = getattr(target, "__name__", "") == "executorch_call_delegate"
        memo[key] = ((args, kwargs), _delegate_outputs(*args) if is_delegate else target(*args, **kwargs))
    return memo[key][1]


def memo_key(x: Any) -> Any:
    """A hashable key of arguments. It holds ids of modules and of some tensors: they must outlive it."""
    if isinstance(x, FakeTensor) and x.constant is None:
        return _fake_tensor_key(x)
    if isinstance(x, torch.nn.Module):
        return id(x)
    if isinstance(x, PLAIN_TYPES):
        return type(x), x
    if isinstance(x, list | tuple):
        return tuple(map(memo_key, x))
    if isinstance(x, dict):
        return tuple((k, memo_key(v)) for k, v in x.items())
    raise UnkeyableArgument


def _fake_tensor_key(x: FakeTensor) -> Any:
    """All properties that an op can read; with symbolic sizes, the id of the tensor."""
    layout = (*x.shape, *x.stride(), x.storage_offset())
    if {*map(type, layout)} != {int}:
        return id(x)
    return id(x.fake_mode), x.dtype, x.fake_device, x.layout, x.requires_grad, x.dim(), layout


def _delegate_outputs(delegate: Any, *inputs: Any) -> Any:
    """Outputs of a delegate, read from its graph instead of running it.

    They require gradients if an input does; the delegate's own parameters never do.
    """
    out = next(n for n in reversed(delegate.original_module.graph.nodes) if n.op == "output")
    requires_grad = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    return tuple(_with_requires_grad(n.meta["val"], requires_grad) for n in out.args[0])


def _with_requires_grad(x: Any, wanted: bool) -> Any:
    """A copy; a delegate may also return a size, which is a number."""
    return x.detach().requires_grad_(wanted and x.dtype.is_floating_point) if isinstance(x, torch.Tensor) else x
