"""A target knows no planner, and the planner reads only three parts of a target: by the source, not by a run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (ROOT / "ingot").rglob("*.py")}
FORBIDDEN = ("ingot.api", "ingot.plan.", "ingot.quantize.pt2e", "ingot.verify.", "ingot.result.", "ingot.cli.")


@cache
def imported(module: str) -> frozenset[str]:
    """Modules of Ingot that it imports, also inside functions; those for type checking do not count."""
    found: set[str] = set()
    for node in _statements(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found & MODULES.keys())


def _statements(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return []
    return [node, *(found for child in ast.iter_child_nodes(node) for found in _statements(child))]


def reached(module: str) -> dict[str, str]:
    """Every module that it imports, directly or not -> the one that imports it."""
    found, todo = dict[str, str](), [module]
    while todo:
        here = todo.pop()
        new = imported(here) - found.keys()
        found |= dict.fromkeys(new, here)
        todo += new
    return found


@pytest.mark.smoke
@pytest.mark.parametrize("room", ["ingot.targets.", "ingot.backends."])
def test_targets_and_backends_do_not_import_the_planner(room: str) -> None:
    for module in (m for m in MODULES if m.startswith(room)):
        wrong = {m: by for m, by in reached(module).items() if f"{m}.".startswith(FORBIDDEN)}
        assert not wrong, f"{module}: {wrong}"


@pytest.mark.smoke
def test_the_planner_reads_numerics_kernels_and_cost_only() -> None:
    for path in (ROOT / "ingot/plan").rglob("*.py"):
        read = set(re.findall(r"\btarget\.(lowering|runner|setup|weight_only)\b", path.read_text()))
        assert not read, f"{path.name} reads {read} of a target"
