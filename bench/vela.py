"""Vela on the TOSA of any delegate, stock's too, with the flags of ExecuTorch's backend."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingot.errors import LowerError, TargetError
from ingot.targets.arm.performance import Performance, Row, csv_rows, performance_from
from ingot.targets.arm.requirements import VELA


def measure(
    tosa: bytes,
    accelerator: str,
    system_config: str | None = None,
    memory_mode: str | None = None,
    extra: Sequence[str] = (),
    seconds: float = 600,
) -> Performance:
    """Compile one delegate's TOSA as ExecuTorch would, and read what Vela says of it; None: ExecuTorch's default."""
    if VELA.found() is None:
        raise TargetError("Vela cannot estimate the performance", why="it is not installed", hint=VELA.install)
    if tosa[4:8] != b"TOSA":
        raise LowerError("Vela was given no TOSA", why=f"its mark is missing in these {len(tosa)} bytes", hint=_HINT)
    summaries, layers = _tables(tosa, _flags(accelerator, system_config, memory_mode, extra), seconds)
    return performance_from(accelerator, summaries, layers)


_HINT = "hand over what the compiler was given for this accelerator, and configurations that Arm/vela.ini knows"


def _flags(accelerator: str, system_config: str | None, memory_mode: str | None, extra: Sequence[str]) -> list[str]:
    """Those of the lowering itself, so that the numbers are those of the binary in the program."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec

    try:
        spec = EthosUCompileSpec(accelerator, system_config, memory_mode, list(extra))
    except (RuntimeError, ValueError) as e:
        hint = "such as ethos-u55-128, ethos-u65-256 or ethos-u85-256"
        raise TargetError(f"unknown accelerator '{accelerator}'", why=str(e), hint=hint) from e
    return " ".join(spec.compiler_flags).split()  # one flag may hold two words: so the backend hands them on


def _tables(tosa: bytes, flags: Sequence[str], seconds: float) -> tuple[list[Row], list[Row]]:
    """In a folder of its own: Vela names its files after the graph, and several may be compiled at once."""
    try:
        with tempfile.TemporaryDirectory(prefix="ingot-vela-") as name:
            folder = Path(name)
            (folder / "graph.tosa").write_bytes(tosa)
            _run(flags, folder, seconds)
            summary, layers = next(folder.glob("graph_summary_*.csv")), folder / "graph_per-layer.csv"
            return csv_rows(summary.read_bytes()), csv_rows(layers.read_bytes())
    except OSError as e:
        raise LowerError("Vela could not be run", why=str(e), hint="free some space for temporary files") from e


def _run(flags: Sequence[str], folder: Path, seconds: float) -> None:
    vela = [sys.executable, "-P", "-m", "ethosu.vela"]
    command = [*vela, *flags, "--verbose-performance", f"--output-dir={folder}", str(folder / "graph.tosa")]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=True)
    except subprocess.TimeoutExpired as e:
        raise LowerError("Vela did not end", why=f"it took more than {seconds:g} s", hint="allow more seconds") from e
    except subprocess.CalledProcessError as e:
        raise LowerError("Vela did not compile the graph", why=_complaint(e), hint=_HINT) from e


def _complaint(error: subprocess.CalledProcessError) -> str:
    """What follows the last exception's name, without the traceback; a crash leaves only its code."""
    said = error.stderr.decode(errors="replace")
    last = re.split(r"^(?:[\w.]+(?:Error|Exception)|vela: error): ", said, flags=re.MULTILINE)[-1]
    return " ".join(last.split())[:500] or f"it ended with code {error.returncode}"
