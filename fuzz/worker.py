"""A worker: reads programs from standard input, writes outcomes; many programs in one process."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what native code prints goes to the log
    faulthandler.enable()
    warnings.simplefilter("ignore")
    import ingot  # noqa: F401  before the first program, so that its time is not counted

    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from fuzz.damage import read_damaged
    from fuzz.judge import judge

    return read_damaged(request) if "damage" in request else judge(_program(request)).to_dict()


def _program(request: dict[str, Any]) -> Any:
    from fuzz.generate import draw_program
    from fuzz.program import program_from

    return (
        program_from(request["program"]) if "program" in request else draw_program(request["seed"], request["target"])
    )


if __name__ == "__main__":
    main()
