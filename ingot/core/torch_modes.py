"""Torch's ambient modes: what a caller has switched on for code of its own must not change what a cast computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

AUTOCAST = "Ingot was called under torch.autocast and runs without it: the model computes in the dtypes of its weights"
_callers: ContextVar[torch.dtype | None] = ContextVar("_callers", default=None)


@contextmanager
def neutral_modes() -> Iterator[None]:
    """Without inference mode (its tensors have no gradient and no version), autocast, or another default dtype."""
    with ExitStack() as undo:
        undo.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            undo.enter_context(torch.autocast(kind, enabled=False))
        token = _callers.set(_callers.get() or torch.get_default_dtype())
        undo.callback(_callers.reset, token)
        undo.enter_context(_default_dtype(torch.float32))
        yield


@contextmanager
def callers_dtype() -> Iterator[None]:
    """The default dtype of the caller, in which the user's model is run: a `torch.zeros` in it depends on that."""
    with _default_dtype(_callers.get() or torch.get_default_dtype()):
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    if before == dtype:  # it is global: other threads would see a change
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_neutral_modes(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run in `neutral_modes`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_autocast_enabled("cpu"):
            warnings.warn(AUTOCAST, stacklevel=2)
        with neutral_modes():
            return function(*args, **kwargs)

    return run
