"""Requirements of Arm's targets besides ExecuTorch, and the commands that install them.

`python -m ingot.targets.arm.requirements` prints the commands for what is missing; `make test` runs them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from ingot.core.versions import install_line
from ingot.errors import TargetError
from ingot.targets.base import Requirement
from ingot.targets.requirements import EXECUTORCH, package


def find_converter() -> str | None:
    """Its path. Also sets MODEL_CONVERTER_PATH for the backend: the folder of this Python may not be on the PATH."""
    beside = Path(sys.executable).parent / "model-converter"
    if beside.exists():
        os.environ.setdefault("MODEL_CONVERTER_PATH", str(beside))
    given = os.environ.get("MODEL_CONVERTER_PATH", "")
    return given if os.access(given, os.X_OK) else shutil.which("model-converter") or shutil.which("model_converter")


def check_converter() -> None:
    """Start it once: a build for another glibc is executable and does not run."""
    path = find_converter()
    why = _start_error(path) if path else "it is not installed"
    if why:
        raise TargetError("Arm's model converter does not start", where=path, why=why, hint=CONVERTER.install)


@cache
def _start_error(path: str) -> str | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    said = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (said[-1] if said else f"it ended with code {done.returncode}")


CONVERTER = Requirement("model-converter", find_converter, install_line("ai_ml_sdk_model_converter"))
VELA = package("ethos-u-vela")
TOSA = (
    package("tosa-tools", no_deps=True),  # it pins older numpy and flatbuffers than it needs
    package("ml_dtypes"),
)
COMMON = (*EXECUTORCH, *TOSA)


def _installable() -> list[str]:
    """Shell commands, each once; those for system packages only for root."""
    from ingot.targets.arm.vulkan_tools import REQUIREMENTS

    root = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")
    missing = [r.install for r in (*TOSA, VELA, CONVERTER, *REQUIREMENTS) if r.found() is None]
    lines = list(dict.fromkeys(missing))
    system = [f"{line} || echo 'skipped: {line}'" for line in lines if not line.startswith("pip ") and root]
    return [*(line for line in lines if line.startswith("pip ")), *system]


if __name__ == "__main__":
    print("\n".join(_installable()))
