"""Run small casts against other releases: `python -m tools.other_versions executorch==1.4.1 executorch==1.5.0`.

Each set of packages (joined by commas) gets an environment `.venv-NAME` of its own. Every cast must succeed and be
verified, or be refused in words: a bare exception is a failure. Not part of `make test`: it downloads packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot.core.versions import TESTED

ROOT = Path(__file__).parent.parent
DEFAULT = ("executorch==1.5.0", "executorch==1.4.1", "executorch==1.3.1")
CORE = ("torch", "torchao", "executorch")
PACKAGES = ("pydantic>=2.10", "rich>=13", "networkx>=3", "numpy>=2.0")
# For Arm's targets; tosa-tools is installed without its dependencies, as in ingot/targets/arm/requirements.py.
ARM = ("ethos-u-vela", "ml_dtypes", "ai_ml_sdk_model_converter")


def main(asked: Sequence[str]) -> int:
    """0 where no cast ended with a bare exception."""
    results = {name: _run(name.split(",")) for name in asked or DEFAULT}
    for name, rows in results.items():
        print(f"\n{name}")
        for row in rows:
            print(f"  {row['net']:12} {row['target']:14} {row['how']:6} {row['outcome']:8} {row['said']}")
        for note in dict.fromkeys(note for row in rows for note in row["notes"]):
            print(f"  note: {note}")
    return int(any(row["outcome"] == "bare" for rows in results.values() for row in rows))


def _run(packages: Sequence[str]) -> list[Mapping[str, Any]]:
    python = _environment(packages)
    # On the PATH: some releases look for the scripts of their wheel there, such as flatc.
    paths = f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": paths}
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "tools.smoke_casts"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        rows.append({"net": "", "target": "", "how": "", "outcome": "bare", "said": said, "notes": []})
    return rows


def _environment(packages: Sequence[str]) -> str:
    """The Python of an environment with these packages and the tested versions of all others; made on first use."""
    folder = ROOT / f".venv-{'-'.join(packages).replace('==', '-')}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        venv.create(folder, with_pip=True)
        given = {p.partition("==")[0]: p for p in packages}
        core = [given.get(p, f"{p}=={TESTED[p]}") for p in CORE]
        _pip(python, *core, *PACKAGES, *(f"{p}=={TESTED[p]}" for p in ARM))
        _pip(python, "--no-deps", f"tosa-tools=={TESTED['tosa-tools']}")
        (folder / ".ready").touch()
    return str(python)


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "-q", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
