"""The host ops of a program as YAML for ExecuTorch's selective build, by ExecuTorch's own `gen_oplist`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingot.errors import ArtefactError, first_sentence

UNREADABLE = "the ops of the program cannot be read"
TOOL = "executorch.codegen.tools.gen_oplist"
PROGRAM = "model.pte"  # the name that the YAML has under debug_info


def op_list_yaml(pte: bytes, backends: Sequence[str]) -> str:
    """Kernels that the runtime must have, with dtypes and layouts; the backends to link are in a comment."""
    ops = _program_ops(pte)
    with tempfile.TemporaryDirectory() as folder:
        text = _generated(pte, Path(folder))
    if (missing := [op for op in ops if f"{op}:" not in text]) != []:
        raise ArtefactError(UNREADABLE, why=f"{TOOL} left out {', '.join(missing)}", hint="cast it again")
    linked = ", ".join(sorted(set(backends))) or "none"
    return f"# Kernels of the host for one program. Backends to link: {linked}.\n{text}"


def _program_ops(pte: bytes) -> list[str]:
    """Read by ExecuTorch's deserializer, which checks the file; `gen_oplist` crashes, or reads anything."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    try:
        plans = deserialize_pte_binary(pte).program.execution_plan
    except Exception as e:  # whatever the deserializer raises
        raise ArtefactError(UNREADABLE, why=first_sentence(e), hint="cast it again") from e
    return sorted({f"{op.name}.{op.overload}" if op.overload else op.name for plan in plans for op in plan.operators})


def _generated(pte: bytes, folder: Path) -> str:
    """In a process of its own, since the tool prints and may crash."""
    program, file = folder / PROGRAM, folder / "ops.yaml"
    program.write_bytes(pte)
    options = ["--model_file_path", str(program), "--output_path", str(file)]
    done = subprocess.run([sys.executable, "-m", TOOL, *options], capture_output=True, text=True)
    if done.returncode or not file.exists():
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ArtefactError(UNREADABLE, why=f"{TOOL}: {said[0]}", hint="cast it again")
    return file.read_text().replace(str(program), PROGRAM)
