"""Rules of the house that no linter knows: no cycles; one name, one meaning; few files at the top; rooms explained.

`python -m tools.check_names` prints what breaks them and exits 1.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx as nx

PACKAGE = Path(__file__).parents[1] / "ingot"
TOP_FILES = {"__init__.py", "api.py", "errors.py", "py.typed"}
# A verb of the API and the command of the shell that calls it share a name on purpose, as do entry points of scripts.
SHARED = {"main", "cast", "record", "plan", "lower", "verify", "localize", "targets"}


def cycles() -> Iterator[str]:
    """Modules that import each other, imports inside functions included; those for type checkers are not."""
    graph, edges = grimp.build_graph("ingot", exclude_type_checking_imports=True, cache_dir=None), nx.DiGraph()
    edges.add_edges_from((m, i) for m in graph.modules for i in graph.find_modules_directly_imported_by(m))
    for found in nx.strongly_connected_components(edges):
        if len(found) > 1:
            yield f"these modules import each other: {', '.join(sorted(found))}"


def problems(package: Path = PACKAGE) -> Iterator[str]:
    yield from _shared_names(package)
    yield from _loose_files(package)
    yield from _rooms_without_a_word(package)


def _shared_names(package: Path) -> Iterator[str]:
    """No two public classes or functions of the same name."""
    found = defaultdict[str, list[str]](list)
    for file in sorted(package.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                found[node.name].append(f"{file.relative_to(package.parent)}:{node.lineno}")
    for name, places in found.items():
        unique = {p.rpartition(":")[0] for p in places}  # overloads are one function
        if len(unique) > 1 and not (name in SHARED and any("/cli/" in p or name == "main" for p in unique)):
            yield f"'{name}' is defined twice: {', '.join(places)}"


def _loose_files(package: Path) -> Iterator[str]:
    for file in package.iterdir():
        if file.is_file() and file.name not in TOP_FILES:
            yield f"{file.relative_to(package.parent)} lies flat: it belongs in a room"


def _rooms_without_a_word(package: Path) -> Iterator[str]:
    """Each room says what it holds in its docstring, and is in the README's map."""
    map_ = (package.parent / "README.md").read_text()
    for room in sorted(p for p in package.iterdir() if (p / "__init__.py").exists()):
        if not ast.get_docstring(ast.parse((room / "__init__.py").read_text())):
            yield f"{room.name}/__init__.py does not say what the room holds"
        if f"`{room.name}/`" not in map_ and f"`ingot/{room.name}/`" not in map_:
            yield f"{room.name}/ is not in the README's map of the rooms"


def main() -> int:
    found = [*problems(), *cycles()]
    print("\n".join(found) or "names: every rule holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
