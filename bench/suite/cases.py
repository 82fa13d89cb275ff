"""The tests of ExecuTorch's suite: one case per test function and set of parameters.

`python -m bench.suite.cases operators` prints their ids.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from bench.entry import Unavailable
from bench.packages import torchvision_models

SUITES = ("operators", "models")
PACKAGE = "executorch.backends.test.suite"


@dataclass(frozen=True)
class Case:
    """One test of the suite. `run(runner)` calls `runner.lower_and_run_model` once or several times."""

    id: str  # operators/test_add::test_add_dtype[float32]
    function: Callable[..., None]
    parameters: dict[str, Any] = field(default_factory=dict)

    def run(self, runner: Any) -> None:
        self.function(runner, **self.parameters)


def cases(suite: str) -> Iterator[Case]:
    """All cases of a suite, file by file. A file whose package is missing (torchaudio) is left out, with a line."""
    with contextlib.suppress(Unavailable):  # declares what PyPI's torchvision misses beside a CPU build of torch
        torchvision_models()
    package = importlib.import_module(f"{PACKAGE}.{suite}")
    for info in pkgutil.iter_modules(package.__path__):
        try:
            module = importlib.import_module(f"{package.__name__}.{info.name}")
        except (ImportError, OSError) as e:
            print(f"left out: {suite}/{info.name}: {e}", file=sys.stderr)
            continue
        yield from _cases_of(suite, module)


def _cases_of(suite: str, module: ModuleType) -> Iterator[Case]:
    for name, function in vars(module).items():
        if not name.startswith("test_") or not callable(function):
            continue
        for label, parameters in _variants(function):
            stem = f"{suite}/{module.__name__.rpartition('.')[2]}::{name}"
            yield Case(f"{stem}[{label}]" if label else stem, function, parameters)


def _variants(function: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The product of the test's `pytest.mark.parametrize` marks, as pytest would run them."""
    marks = [m for m in getattr(function, "pytestmark", []) if m.name == "parametrize"]
    for chosen in itertools.product(*([(m.args[0], value) for value in m.args[1]] for m in marks)):
        yield "-".join(_label(*pair) for pair in chosen), dict(chosen)


def _label(name: str, value: Any) -> str:
    return f"{name}={value}".replace("torch.", "")


if __name__ == "__main__":
    for suite in sys.argv[1:] or SUITES:
        print("\n".join(case.id for case in cases(suite)))
