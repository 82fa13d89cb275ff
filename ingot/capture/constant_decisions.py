"""Python decisions on tensors that no input changes: `if mask.all():`, `int(scale)`, `torch.equal(a, b)`.

Export sees shapes only, and refuses them. Here what depends on factories, parameters and buffers alone is computed
beside the trace, and a number that Python reads is that of the real tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

# Torch functions that give Python numbers from data; others (dim, size) give them from shapes.
_READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "equal", "allclose", "is_nonzero"}
_LARGEST = 1 << 22  # elements of an operand: decisions are made on masks and counts
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_UNKNOWN = object()


class ConstantDecisions(TorchFunctionMode):
    """Active while a model is exported. `decided`: numbers that were read; `wrote`: a buffer is state, no constant."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.decided, self.wrote = 0, False
        self._model, self._first, self._names = model, -1, dict[int, str]()
        self._weights = {name: t.detach() for name, t in _tensors_of(model)}
        self._values: Any = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        real = self._evaluated(func, args, kwargs)
        if real is not _UNKNOWN and _name(func) in _READS:
            self.decided += 1
            return real
        out = func(*args, **kwargs)
        for made, value in zip(tree_leaves(out), tree_leaves(real), strict=False) if real is not _UNKNOWN else ():
            if isinstance(made, Tensor) and isinstance(value, Tensor) and made.shape == value.shape:
                self._values[made] = value
        return out

    def _evaluated(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the function gives on real values; _UNKNOWN if an operand depends on an input."""
        given = tree_leaves((args, kwargs))
        tensors = [t for t in given if isinstance(t, Tensor)]
        values = {id(t): self._value(t) for t in tensors}
        if _writes(func, kwargs) and any(self._weight_name(t) for t in tensors):
            self.wrote = True
        if any(v is None for v in values.values()) or any(isinstance(x, _SYMBOLS) for x in given):
            if _writes(func, kwargs):
                self._forget([v for v in values.values() if v is not None])
            return _UNKNOWN
        args, kwargs = tree_map_only(Tensor, lambda t: values[id(t)], (args, kwargs))
        return _computed(func, args, kwargs)

    def _value(self, tensor: Tensor) -> Tensor | None:
        known = self._values.get(tensor)
        name = None if known is not None else self._weight_name(tensor)
        known = self._weights[name] if name else known
        return None if known is None or known.numel() > _LARGEST else known

    def _weight_name(self, tensor: Tensor) -> str | None:
        """Export replaces parameters and buffers while it traces: the names stay."""
        first = next(iter(_tensors_of(self._model)), None)
        if first is not None and id(first[1]) != self._first:
            self._first, self._names = id(first[1]), {id(t): name for name, t in _tensors_of(self._model)}
        return self._names.get(id(tensor))

    def _forget(self, written: list[Tensor]) -> None:
        """Something unknown was written into their memory."""
        memory = {t.untyped_storage().data_ptr() for t in written}
        for tensor in [t for t, v in self._values.items() if v.untyped_storage().data_ptr() in memory]:
            del self._values[tensor]


def _tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", ""))


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    name = _name(func)
    inplace = name.endswith("_") and not name.endswith("__")
    return inplace or name == "__setitem__" or (name.startswith("__i") and name not in _READS) or "out" in kwargs


def _computed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """_UNKNOWN for what two runs do not agree on: random numbers."""
    try:
        with _real_world():
            writes = _writes(func, kwargs)  # otherwise not on copies: a view shares memory with what it is a view of
            runs = [_run(func, _copied(args, kwargs) if writes else (args, kwargs), seed) for seed in (0, 1)]
            if not all(_same(a, b) for a, b in zip(*map(tree_leaves, runs), strict=True)):
                return _UNKNOWN
            return func(*args, **kwargs) if writes else runs[0]
    except Exception:  # a function of a trace: it has no meaning here
        return _UNKNOWN


@contextmanager
def _real_world() -> Iterator[None]:
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


def _run(func: Callable[..., Any], given: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    args, kwargs = given
    return func(*args, **kwargs)


def _copied(args: Any, kwargs: Any) -> Any:
    return tree_map_only(Tensor, torch.clone, (args, kwargs))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    return bool(a == b)
