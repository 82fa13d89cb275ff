"""Objects in the user's code by name: `net.py:build` or `package.module:build`. Errors report the user's own line."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ingot.data.checks import type_name
from ingot.errors import IngotError, InputError, first_sentence, nearest

# Not user code: the standard library, installed packages, Ingot.
NOT_USER_CODE = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parents[1]), "<")


def resolve_object(spec: str, wanted: Callable[[Any], bool]) -> tuple[Any, str]:
    """The object that `spec` names, and its source location."""
    source, _, name = spec.rpartition(":")
    if not source or not name:
        hint = "write file.py:name, package.module:name or file.pt2"
        raise InputError(f"'{spec}' does not name an object", why="the name after the colon is missing", hint=hint)
    module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    if not hasattr(module, name):
        hint = nearest(name, _candidates(module, wanted) or ["build"])
        raise InputError(f"{source} has no '{name}'", where=module.__file__, hint=hint)
    obj = getattr(module, name)
    if not wanted(obj):
        why = f"it is {type_name(obj)}"
        raise InputError(f"{spec} cannot be used here", where=module.__file__, why=why, hint="name a function")
    return obj, _source_location(obj, module)


def call_user_function(function: Callable[[], Any], spec: str, where: str) -> Any:
    """Call the user's function. An exception becomes an InputError with the user's line."""
    try:
        inspect.signature(function).bind()
    except TypeError as e:
        raise InputError(f"{spec} needs arguments", where=where, why=str(e), hint="give each one a default") from e
    try:
        return function()
    except IngotError:
        raise
    except (Exception, SystemExit) as e:
        raise user_error(f"{spec} failed", e, where) from e


def user_error(what: str, error: BaseException, default: str) -> InputError:
    """An InputError for an exception in the user's code."""
    where, why = _user_line(error) or default, f"{type(error).__name__}: {first_sentence(error)}"
    return InputError(what, where=where, why=why, hint="the error is in this code: run it without Ingot")


def check_file_exists(path: Path) -> None:
    """Raise InputError with the most similar file name."""
    if path.is_file():
        return
    similar = [p.name for p in path.parent.glob(f"*{path.suffix}")]
    hint = nearest(path.name, similar) if similar else f"check the path; the current folder is {Path.cwd()}"
    raise InputError(f"no file {path}", hint=hint)


def _candidates(module: ModuleType, wanted: Callable[[Any], bool]) -> list[str]:
    """Possible names: first those that the file itself defines, else all that `wanted` accepts."""
    public = {n: v for n, v in vars(module).items() if not n.startswith("_") and wanted(v)}
    user_frames = [n for n, v in public.items() if getattr(v, "__module__", None) == module.__name__]
    return user_frames or list(public)


def _load_file(path: Path) -> ModuleType:
    """Import a file once. Its folder is importable, as if the file were run as a script."""
    check_file_exists(path)
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _add_to_sys_path(path.parent)
    module_spec: Any = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise user_error(f"{path.name} could not be imported", e, str(path)) from e
    return module


def _load_module(name: str) -> ModuleType:
    _add_to_sys_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        if isinstance(e, ModuleNotFoundError) and f"{name}.".startswith(f"{e.name}."):
            why = f"'{e.name}' is neither installed nor in {Path.cwd()}"
            raise InputError(f"no module '{name}'", why=why, hint="name a file instead: path/to/net.py:build") from e
        raise user_error(f"{name} could not be imported", e, name) from e


def _add_to_sys_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _user_line(error: BaseException) -> str | None:
    """The innermost user line of the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    user_frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_USER_CODE)]
    return f"{user_frames[-1].filename}:{user_frames[-1].lineno}" if user_frames else None


def _source_location(obj: Any, module: ModuleType) -> str:
    try:
        return f"{inspect.getsourcefile(obj)}:{inspect.getsourcelines(obj)[1]}"
    except (TypeError, OSError):  # an instance has no source
        return str(module.__file__)
