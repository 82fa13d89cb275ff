"""The structure of tests/: shared code is in tests/support; bench and fuzz are imported only by tests of that name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
pytestmark = pytest.mark.smoke


def imported(source: str) -> Iterator[str]:
    """Every module that the source may import, function-level imports counted in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def is_test(module: str) -> bool:
    return module.rpartition(".")[2].startswith("test_") and (module.startswith((".", "tests.", "test_")))


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda p: str(p.relative_to(TESTS)))
def test_no_test_imports_a_test_or_bench(path: Path) -> None:
    modules = set(imported(path.read_text()))
    assert {m for m in modules if is_test(m)} == set(), "move what tests share to tests/support"
    for package in ("bench", "fuzz"):
        if path.parent != TESTS / package:
            assert {m for m in modules if m.partition(".")[0] == package} == set(), f"it belongs in tests/{package}"


@pytest.mark.parametrize(
    "source",
    [
        "from tests.cli.test_cli import plan",
        "def f():\n    import tests.cli.test_cli",
        "from tests.cli import test_cli",
        "from . import test_cli",
        "from .test_cli import plan",
    ],
)
def test_each_form_of_import_is_found(source: str) -> None:
    assert any(map(is_test, imported(source)))
