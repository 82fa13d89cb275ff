"""`python -m fuzz.minimise SEED [--target T] [-o FILE]`: the smallest program that fails as this seed's does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fuzz.generate import draw_program
from fuzz.judge import judge
from fuzz.outcome import FINDINGS
from fuzz.pool import run_all
from fuzz.program import FuzzProgram, program_from
from fuzz.shrink import shrink_program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="+", help="seeds, or JSON files of programs")
    parser.add_argument("--target")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each")
    parser.add_argument("-o", "--folder", type=Path, default=Path("fuzz/results/found"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for seed in asked.seeds:
        drawn = (
            program_from(json.loads(Path(seed).read_text()))
            if seed.endswith(".json")
            else draw_program(int(seed), asked.target)
        )
        smallest, answer = minimised(drawn, asked.budget)
        if smallest is None:
            print(f"{seed}: {answer['kind']}: nothing to minimise")
            continue
        file = asked.folder / f"{drawn.seed}-{drawn.target}.json"
        file.write_text(smallest.to_json())
        print(f"{seed}: {len(drawn.steps)} steps -> {len(smallest.steps)}, {file}\n{described(smallest)}\n"
              f"{answer['kind']}: {answer['reason']}\n{answer['text']}\n", flush=True)  # fmt: skip
    return 0


def described(program: FuzzProgram) -> str:
    rows = [f"  {k} = {v.dtype}{list(v.shape)} {v.values} {v.layout}" for k, v in program.inputs.items()]
    rows += [f"  {s.name} = {s.op}({', '.join(s.reads)}) {s.attributes or ''} {s.tied or ''}" for s in program.steps]
    return "\n".join(
        [*rows, f"  return {program.returns} {program.outputs}, {program.batches} batches, {program.recipe}"]
    )


def minimised(program: FuzzProgram, seconds: float) -> tuple[FuzzProgram | None, dict[str, Any]]:
    """Trials run in this process; in a worker each where the program kills or hangs it."""
    wanted = _in_a_worker(program)
    answer = _in_a_worker if wanted["kind"] in ("died", "hang") else _here
    if wanted["kind"] not in (*FINDINGS, "refused"):
        return None, wanted

    def fails(p: FuzzProgram) -> bool:
        made = answer(p)
        return (made["kind"], made["reason"]) == (wanted["kind"], wanted["reason"])

    smallest = shrink_program(program, fails, seconds)
    return smallest, answer(smallest)


def _in_a_worker(program: FuzzProgram) -> dict[str, Any]:
    request = {"program": json.loads(program.to_json()), "seed": program.seed}
    return next(run_all(iter([request]), 1, 120.0))[1]


def _here(program: FuzzProgram) -> dict[str, Any]:
    return judge(program).to_dict()


if __name__ == "__main__":
    sys.exit(main())
