"""Caches of torch, torchao and ExecuTorch that keep every program in memory until the process ends.

Their keys are modules, nodes or shape environments: after a verb has ended, an entry is never found again. With them
go the weights of the model, which no user could free otherwise.
"""

from __future__ import annotations

import functools
import linecache
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from ingot.patches.version_gate import patch_for_good

P = ParamSpec("P")
R = TypeVar("R")
# Functions with a cache by module or node. No package lists these: `make soak` shows which cache grows.
CACHED = (
    "torchao.utils:_assert_and_get_unique_device",  # prepare_pt2e, convert_pt2e: the whole model
    "torch.ao.quantization.fx.utils:assert_and_get_unique_device",
    "executorch.exir.backend.utils:is_same_node",  # lowering: nodes of both graphs
)
EXPORTER = "torch._dynamo.functional_export"
SHAPE_ENV = "torch.fx.experimental.symbolic_shapes:ShapeEnv"  # its cached methods keep it, and so its fake tensors


def releases_programs(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb after which torch keeps nothing of its programs."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _sources_released(), _exported_graphs_released(), _shape_environments_released():
            try:
                return verb(*args, **kwargs)
            finally:
                release_programs()

    return call


def release_programs() -> None:
    """Empty the caches. Where a version lacks one, there is nothing to empty."""
    cached = [_found(name) for name in CACHED]
    for function in (*cached, *vars(_found(SHAPE_ENV) or object).values()):
        if callable(clear := getattr(function, "cache_clear", None)):
            clear()


def _found(name: str) -> Any:
    """None where the module is not imported: then its cache is empty."""
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


@contextmanager
def _sources_released() -> Iterator[None]:
    """FX keeps the source of each graph that it compiles, for tracebacks only: a cast compiles a hundred."""
    sources: dict[str, str] = getattr(_found("torch.fx.graph_module:_loader"), "eval_cache", {})
    before = set(sources)
    try:
        yield
    finally:
        for name in set(sources) - before:
            sources.pop(name, None)
            linecache.cache.pop(name, None)


_verbs_lock, _verbs = threading.Lock(), list[set[str]]()  # of each verb that runs: the graphs that were there before


@contextmanager
def _exported_graphs_released() -> Iterator[None]:
    """Dynamo makes each graph of a strict export a global of its module: backends export patterns at each lowering.

    The graphs of a verb are deleted when the last verb of all threads ends, since the others may be exporting.
    """
    with _verbs_lock:
        _verbs.append(_exported_graphs())
    try:
        yield
    finally:
        with _verbs_lock:
            before = _verbs[0] if len(_verbs) == 1 else None
            _verbs.pop()
        for name in _exported_graphs() - before if before is not None else ():
            vars(sys.modules[EXPORTER]).pop(name, None)


def _exported_graphs() -> set[str]:
    names = list(vars(sys.modules.get(EXPORTER) or object))  # at once: another thread may add to them
    return {name for name in names if name.startswith("__compiled_fn")}


_made: ContextVar[list[Any]] = ContextVar("_made")  # shape environments of the verb that runs, as weak references


@contextmanager
def _shape_environments_released() -> Iterator[None]:
    """A shape environment keeps itself: by fake tensors whose sizes are symbols, in memory that Python cannot trace.

    What is cleared here serves torch.export while it runs, and saves time afterwards.
    """
    patch_for_good("shape_environments")
    before = _made.set([])
    try:
        yield
    finally:
        for environment in filter(None, (reference() for reference in _made.get())):
            for part in (environment.tracked_fakes, getattr(environment, "fake_tensor_cache", None)):
                if part is not None:
                    part.clear()
        _made.reset(before)


def noting_environment(original: Any, session: dict[str, Any]) -> Any:
    """Outside of verbs nothing is noted."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if (made := _made.get(None)) is not None:
            made.append(weakref.ref(self))

    return init
