"""Caches of torch, torchao and ExecuTorch that keep every program in memory until the process ends.

Their keys are modules, nodes or shape environments: after a verb has ended, an entry is never found again. With them
go the weights of the model, which no user could free otherwise.
"""

from __future__ import annotations

import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from ingot.core.host_memory import garbage_collected
from ingot.core.shape_cache import drop_oldest_shapes
from ingot.patches.strict_exports import strict_exports_released
from ingot.patches.version_gate import patch_for_good

P = ParamSpec("P")
R = TypeVar("R")
# Functions with a cache by module or node. No package lists these: `make soak` shows which cache grows.
CACHED = (
    "torchao.utils:_assert_and_get_unique_device",  # prepare_pt2e, convert_pt2e: the whole model
    "torch.ao.quantization.fx.utils:assert_and_get_unique_device",
    "executorch.exir.backend.utils:is_same_node",  # lowering: nodes of both graphs
)
FAKE_RESULTS = "torch._subclasses.fake_tensor:FakeTensorMode"  # its cache has an entry for each op, shapes, arguments
MOST_FAKE_RESULTS = 2000  # that the next verb finds: one of some kilobytes each, and a cast makes 50
LAST_EXPORT = "torch.fx.experimental.proxy_tensor:_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT"  # nodes of the last graph
SHAPE_ENV = "torch.fx.experimental.symbolic_shapes:ShapeEnv"  # its cached methods keep it, and so its fake tensors


def releases_programs(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb after which torch keeps nothing of its programs."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with garbage_collected(), _sources_released(), strict_exports_released(), _shape_environments_released():
            try:
                return verb(*args, **kwargs)
            finally:
                release_programs()
                _release_shapes()

    return call


def release_programs() -> None:
    """Empty the caches. Where a version lacks one, there is nothing to empty."""
    cached = [_found(name) for name in CACHED]
    for function in (*cached, *vars(_found(SHAPE_ENV) or object).values()):
        if callable(clear := getattr(function, "cache_clear", None)):
            clear()
    (_found(LAST_EXPORT) or {}).clear()


def _release_shapes() -> None:
    """What is cached by shape is found again, as long as the shapes are: only the excess goes."""
    drop_oldest_shapes()
    fakes = _found(FAKE_RESULTS)
    if len(getattr(fakes, "cache", ())) > MOST_FAKE_RESULTS:
        fakes.cache_clear()


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
