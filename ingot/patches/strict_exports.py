"""What Dynamo leaves of a strict export: globals of its exporter module, and guards that nothing will ever check.

Backends export patterns of their own when they lower, so a user has strict exports without asking for any.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ingot.patches.version_gate import patch_for_good

EXPORTER = "torch._dynamo.functional_export"
GUARDS = "torch._dynamo.guards"


@contextmanager
def strict_exports_released() -> Iterator[None]:
    with _globals_released(), _guards_released():
        yield


_verbs_lock, _verbs = threading.Lock(), list[set[str]]()  # of each verb that runs: the globals that were there before


@contextmanager
def _globals_released() -> Iterator[None]:
    """Dynamo makes each graph and each dict of builtins that a guard reads a global of its module.

    Those of a verb are deleted when the last verb of all threads ends, since the others may be exporting.
    """
    with _verbs_lock:
        _verbs.append(installed_globals())
    try:
        yield
    finally:
        with _verbs_lock:
            before = _verbs[0] if len(_verbs) == 1 else None
            _verbs.pop()
        for name in installed_globals() - before if before is not None else ():
            vars(sys.modules[EXPORTER]).pop(name, None)


def installed_globals() -> set[str]:
    """By their names: `__compiled_fn_3`, `__builtins_dict___4`. The module has none such of its own."""
    names = list(vars(sys.modules.get(EXPORTER) or object))  # at once: another thread may add to them
    return {name for name in names if name.startswith("__") and not name.endswith("__")}


_made: ContextVar[list[Any]] = ContextVar("_made")  # guard managers of the verb that runs, as weak references


@contextmanager
def _guards_released() -> Iterator[None]:
    """Guards watch each object that they compare, by a finalizer, so that they become invalid when it dies.

    The finalizer keeps them: for types and functions as long as the process. An export keeps no code that they would
    be checked for; what is compiled meanwhile does, and so its guards stay.
    """
    if GUARDS in sys.modules:  # else the first export imports it, and that one's guards stay
        patch_for_good("guards")
    before = _made.set([])
    try:
        yield
    finally:
        _stop_watching([manager for reference in _made.get() if _is_unused(manager := reference())])
        _made.reset(before)


def _is_unused(manager: Any) -> bool:
    return manager is not None and getattr(getattr(manager, "guard_manager", None), "cache_entry", None) is None


def _stop_watching(managers: list[Any]) -> None:
    watching = finalizers() if managers else []
    unused = {id(manager) for manager in managers}
    for finalizer in watching:
        method = getattr((finalizer.peek() or (None, None))[1], "func", None)  # of the partial that it would call
        if id(getattr(method, "__self__", None)) in unused:
            finalizer.detach()


def finalizers() -> list[Any]:
    """All of this process."""
    return list(getattr(weakref.finalize, "_registry", ()))


def noting_guards(original: Any, session: dict[str, Any]) -> Callable[..., None]:
    """Outside of verbs nothing is noted."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if (made := _made.get(None)) is not None:
            made.append(weakref.ref(self))
        original(self, *args, **kwargs)

    return init
