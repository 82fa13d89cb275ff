"""`python -m tests.golden.renew`: write hashes.json anew for this CPU, and print what changed.

Hashes of other CPUs are kept if nothing changed, else they are removed: they are of older code.

Each case is cast in fresh processes with different hash seeds. The plan must be the same in all of them. Where the .pte
differs, its hash is not stored.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.golden.cases import CASES, cpu, versions

FILE = Path(__file__).with_name("hashes.json")
SEEDS = (1, 2, 3)
Hashes = dict[str, dict[str, str]]


def in_fresh_process(names: Iterable[str], seed: int) -> Hashes:
    """The hashes of these cases, from a process with this PYTHONHASHSEED and no answers of backends kept on disk."""
    environ = {**os.environ, "PYTHONHASHSEED": str(seed), "INGOT_CACHE": ""}
    command = [sys.executable, "-W", "ignore", "-m", "tests.golden.cases", *names]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environ, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def reproducible(runs: list[Hashes]) -> Hashes:
    """What all runs agree on."""
    first, *others = runs
    agreed = {
        name: {kind: value for kind, value in kinds.items() if all(run[name][kind] == value for run in others)}
        for name, kinds in first.items()
    }
    for name, kinds in agreed.items():
        if not {"plan", "plan_json"} <= kinds.keys():
            raise SystemExit(f"{name}: the plan is not the same in each process")
    return {name: {k: v for k, v in kinds.items() if k != "plan_json"} for name, kinds in agreed.items()}


def changes(before: Hashes, after: Hashes) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, {}), after.get(name, {})
        for kind in sorted({*old, *new}):
            if old.get(kind) != new.get(kind):
                yield f"{name}: {kind} {old.get(kind, 'absent')[:12]} -> {new.get(kind, 'absent')[:12]}"


def stored() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {"versions": {}, "by_cpu": {}}


def main() -> None:
    names = list(CASES)
    orders = [names[i:] + names[:i] for i in range(len(SEEDS))]
    found = reproducible([in_fresh_process(order, seed) for order, seed in zip(orders, SEEDS, strict=True)])
    cases = {name: found[name] for name in names}
    known = stored()["by_cpu"] if stored()["versions"] == versions() else {}
    changed = list(changes(known.get(cpu(), {}), cases))
    print("\n".join(changed) or "nothing changed")
    kept = known if not changed or cpu() not in known else {}
    FILE.write_text(json.dumps({"versions": versions(), "by_cpu": {**kept, cpu(): cases}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
