"""Objects in the user's own code by name, `net.py:build` or `package.module:build`; what it raises, with its line."""

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

from ingot.data.fit import kind
from ingot.errors import IngotError, InputError, first_sentence, nearest

# Whose lines are not the user's: Python's, installed packages', ours.
FOREIGN = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parents[1]), "<")


def resolve(spec: str, wanted: Callable[[Any], bool]) -> tuple[Any, str]:
    """The object that `spec` names, and where it was found."""
    source, _, name = spec.rpartition(":")
    if not source or not name:
        hint = "write file.py:name, package.module:name or file.pt2"
        raise InputError(f"'{spec}' names no object", why="a name after a colon is missing", hint=hint)
    module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    if not hasattr(module, name):
        hint = nearest(name, _names(module, wanted) or ["build"])
        raise InputError(f"{source} has no '{name}'", where=module.__file__, hint=hint)
    thing = getattr(module, name)
    if not wanted(thing):
        why = f"it is {kind(thing)}"
        raise InputError(f"{spec} cannot be used here", where=module.__file__, why=why, hint="name a function")
    return thing, _place(thing, module)


def call(function: Callable[[], Any], spec: str, where: str) -> Any:
    """Call the user's function; what it raises is told with the user's own line."""
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
    where, why = _user_line(error) or default, f"{type(error).__name__}: {first_sentence(error)}"
    return InputError(what, where=where, why=why, hint="it fails without Ingot too: run it alone")


def must_exist(path: Path) -> None:
    if path.is_file():
        return
    near = [p.name for p in path.parent.glob(f"*{path.suffix}")]
    hint = nearest(path.name, near) if near else f"is the path right? it was looked for from {Path.cwd()}"
    raise InputError(f"no file {path}", hint=hint)


def _names(module: ModuleType, wanted: Callable[[Any], bool]) -> list[str]:
    """What the user may have meant: first what the file itself defines, else anything that would do."""
    public = {n: v for n, v in vars(module).items() if not n.startswith("_") and wanted(v)}
    own = [n for n, v in public.items() if getattr(v, "__module__", None) == module.__name__]
    return own or list(public)


def _load_file(path: Path) -> ModuleType:
    """Import a file once, with its own folder importable as if it were run as a script."""
    must_exist(path)
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _importable(path.parent)
    found: Any = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise user_error(f"{path.name} could not be imported", e, str(path)) from e
    return module


def _load_module(name: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        if isinstance(e, ModuleNotFoundError) and f"{name}.".startswith(f"{e.name}."):
            why = f"'{e.name}' is neither installed nor in {Path.cwd()}"
            raise InputError(f"no module '{name}'", why=why, hint="name a file instead: path/to/net.py:build") from e
        raise user_error(f"{name} could not be imported", e, name) from e


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _user_line(error: BaseException) -> str | None:
    """The deepest line of the traceback that the user wrote."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(FOREIGN)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _place(thing: Any, module: ModuleType) -> str:
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (TypeError, OSError):  # a ready object has no source
        return str(module.__file__)
