"""Files are replaced completely or not at all, and a process that is killed leaves nothing for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.core.atomic_file import atomic_write, write_folders
from ingot.core.partial_files import partial_file, remove_abandoned
from ingot.errors import ArtefactError

WRITE_FILE = """
with atomic_write(Path("model.pte")) as f:
    f.write(b"half")
    wait()
"""
WRITE_FOLDER = """
class Slow(dict):
    def items(self):
        yield "a.txt", b"half"
        wait()
write_folders({Path("out"): Slow()})
"""
CHILD = """
import sys, time
from pathlib import Path
from ingot.core.atomic_file import atomic_write, write_folders

def wait():
    print("writing", flush=True)
    time.sleep(60)
"""


def hidden(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob(".*"))


def started(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that has written half."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", CHILD + code], cwd=folder, stdout=subprocess.PIPE, env=env)
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    return child


def killed(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()


def write_file(folder: Path) -> None:
    with atomic_write(folder / "model.pte") as f:
        f.write(b"whole")


def write_half(folder: Path) -> None:
    with atomic_write(folder / "model.pte") as f:
        f.write(b"half")
        raise OSError("no space left")


def write_folder(folder: Path) -> None:
    write_folders({folder / "out": {"a.txt": b"whole"}})


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("code", "write"), [(WRITE_FILE, write_file), (WRITE_FOLDER, write_folder)])
def test_the_next_write_removes_what_a_killed_one_left(
    tmp_path: Path, code: str, write: Callable[[Path], None], exists: bool
) -> None:
    if exists:
        write(tmp_path)
    child = started(code, tmp_path)
    assert len(hidden(tmp_path)) == 1
    write(tmp_path)
    assert len(hidden(tmp_path)) == 1, "its writer is alive"
    killed(child)
    write(tmp_path)
    assert hidden(tmp_path) == []
    assert {p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == {b"whole"}


def test_what_only_looks_like_a_partial_file_stays(tmp_path: Path) -> None:
    for name in (".model.pte.backup", ".model.pte.partial", f".other.pte.{'0' * 32}.partial"):
        (tmp_path / name).write_bytes(b"mine")
    write_file(tmp_path)
    assert len(hidden(tmp_path)) == 3


def test_a_file_taken_for_abandoned_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingot.core import partial_files

    real, seen = partial_files._lock, list[Path]()

    def late(path: Path) -> int:
        seen.append(path)
        if len(seen) == 1:
            remove_abandoned("a", tmp_path)
        return real(path)

    monkeypatch.setattr(partial_files, "_lock", late)
    with partial_file(tmp_path / "a") as path:
        assert path.exists()
    assert len(seen) == 2


def test_an_error_while_writing_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    write_file(tmp_path)
    with pytest.raises(ArtefactError, match="could not write"):
        write_half(tmp_path)
    assert (tmp_path / "model.pte").read_bytes() == b"whole"
    assert hidden(tmp_path) == []
