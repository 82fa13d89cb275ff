"""The commands of Ingot.

Exit codes: 0 done · 1 a bug in Ingot · 2 the command, the data, the model or the target does not fit ·
3 the artefact ran and its numbers are wrong · 4 an artefact could not be loaded, run or written ·
5 no plan meets the goal: the nearest one is written · 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from ingot.cli.output import INTERRUPTED, Answer, bug, calm, clean_stdout, fail, refuse, say
from ingot.cli.parser import make_parser
from ingot.errors import IngotError
from ingot.patches.version_errors import version_errors

# Verb -> module and function. Imported when asked for: torch takes seconds, and --help needs none of it.
COMMANDS = {
    "cast": "cast_commands:cast",
    "record": "cast_commands:record",
    "plan": "cast_commands:plan",
    "lower": "cast_commands:lower",
    "verify": "verify_commands:verify",
    "localize": "verify_commands:localize",
    "run": "verify_commands:run_scenario_command",
    "report": "report_commands:report",
    "export": "export_commands:export",
    "compare": "report_commands:compare",
    "sweep": "fleet_commands:sweep_command",
    "generate": "text_commands:generate_command",
    "chat": "text_commands:chat_command",
    "embed": "embed_command:embed_command",
    "why": "info_commands:why",
    "diff": "info_commands:diff",
    "targets": "info_commands:targets",
    "conformance": "conformance_command:conformance_command",
    "schema": "info_commands:schema",
    "demo": "info_commands:run_demo_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises, never leaves half a file."""
    args = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in args
    try:
        options = make_parser().parse_args(args)
        with clean_stdout(), calm():
            answer = _run(options)
        return say(*answer, as_json)
    except SystemExit as e:  # --help and --version
        return int(e.code or 0)
    except KeyboardInterrupt:
        return fail(INTERRUPTED, {"what": "interrupted"}, "interrupted", as_json)
    except IngotError as e:
        return refuse(e, as_json)
    except Exception as e:
        return bug(e, as_json)


def _run(options: argparse.Namespace) -> Answer:
    module, _, function = COMMANDS[options.command].partition(":")
    with version_errors():
        answer: Answer = getattr(importlib.import_module(f"ingot.cli.{module}"), function)(options)
    return answer
