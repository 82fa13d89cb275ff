"""The verbs of Ingot for the shell.

Exit codes: 0 done · 1 a bug in Ingot · 2 the command, the data, the model or the target does not fit ·
3 the artefact ran and is wrong · 4 an artefact could not be loaded, run or written · 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ingot.cli.output import INTERRUPTED, Answer, bug, calm, clean_stdout, fail, refuse, say
from ingot.cli.parser import make_parser
from ingot.errors import IngotError


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
    if options.command in ("report", "compare"):  # they read what was saved
        from ingot.cli import report_commands as reports

        return reports.run(options)
    from ingot.cli import commands  # and with it torch, which takes seconds: not for --help

    return commands.run(options)
