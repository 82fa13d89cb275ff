"""A process that casts and saves is killed at random moments: every file is whole, and no process or folder stays.

What a killed save leaves hidden beside the files goes with the next save.

Two castings are saved in turn over the same files. Where a kill leaves files of both in one folder, `Casting.load` has
to refuse it. Children are forked, since imports take longer than a cast.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

SAVING_SECONDS = 0.6  # more than one round of saves
SECONDS_TO_END = 30.0  # for a worker that is still importing when its parent dies


def kills(number: int, seed: int = 0) -> int:
    """0 if nothing was damaged or left. Every second kill happens while it saves, the others while it casts."""
    import torch

    torch.set_num_threads(1)  # a fork has no copies of the threads of its parent, and would wait for them
    rng, problems = random.Random(seed), list[str]()
    with tempfile.TemporaryDirectory(prefix="ingot-kill-") as name:
        root = Path(name)
        seconds = _seconds_of_a_cast(root)
        for n in range(number):
            after = rng.uniform(0, SAVING_SECONDS) if n % 2 else rng.uniform(0, seconds)
            _kill_one(root, after, saving=bool(n % 2))
            problems += [f"kill {n}, {after:.2f} s after the {('start', 'cast')[n % 2]}: {p}" for p in _problems(root)]
        problems += _left_hidden(root)
    print("\n".join(problems) or f"{number} kills, half of them within a cast of {seconds:.1f} s: every file is whole")
    return 1 if problems else 0


def _seconds_of_a_cast(root: Path) -> float:
    start = time.monotonic()
    _kill_one(root, 2 * SAVING_SECONDS, saving=True)
    if not (root / "saved" / "folder" / "casting.json").exists():
        raise RuntimeError("nothing was saved: kills would show nothing")
    return time.monotonic() - start - 2 * SAVING_SECONDS


def _left_hidden(root: Path) -> list[str]:
    """After one more save, which nothing kills."""
    before = len(_hidden(root))
    child = os.fork()
    if not child:
        _run_child(lambda: _cast_and_save(root, rounds=1))
    os.waitpid(child, 0)
    return [f"of {before} partial files {p.name} is still there" for p in _hidden(root)]


def _hidden(root: Path) -> list[Path]:
    return list((root / "saved").rglob(".*"))


def _kill_one(root: Path, after: float, saving: bool) -> None:
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        _run_child(lambda: _cast_and_save(root, writes))
    os.close(writes)
    with open(reads, "rb") as ready:
        if saving and not ready.readline():
            raise RuntimeError("the cast failed: a kill would show nothing")
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run_child(work: Callable[[], object]) -> None:
    """Does not return."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _cast_and_save(root: Path, ready: int | None = None, rounds: int | None = None) -> None:
    """Until it is killed, or as many rounds of saves."""
    import torch

    import ingot
    from fuzz.samples import X, sample_net

    temporary, saved = root / "temporary", root / "saved"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    torch.set_num_threads(1)
    both = [ingot.cast(sample_net(), (X,), target="xnnpack", calibration=[(X * scale,)]) for scale in (1.0, 3.0)]
    if ready is not None:
        os.write(ready, b"ready\n")
    for number in count() if rounds is None else range(rounds):
        casting = both[number % 2]
        casting.save(saved / "model.pte")
        casting.save_folder(saved / "folder")
        casting.report(saved / "report.html")


def _problems(root: Path) -> Iterator[str]:
    yield from _left_processes(root)
    for file in sorted(p for p in (root / "saved").rglob("*") if p.is_file()):
        hidden = any(part.startswith(".") for part in file.relative_to(root).parts)  # not finished, not yet named
        if not hidden and not is_whole(file):
            yield f"{file.relative_to(root)} is cut, {file.stat().st_size} bytes"
    yield from _unloadable(root / "saved" / "folder")
    left = root / "temporary"
    yield from (f"{p.name} was left" for p in left.glob("ingot-child-*"))
    shutil.rmtree(left, ignore_errors=True)


def _left_processes(root: Path) -> Iterator[str]:
    """Workers end with their parent."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (left := _processes_of(root)) and time.monotonic() < deadline:
        time.sleep(0.2)
    yield from (f"process {pid} still runs" for pid in left)


def _processes_of(root: Path) -> list[int]:
    """Those with a path below `root` on their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if bytes(root) in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def _unloadable(folder: Path) -> Iterator[str]:
    """A mixture of two castings is refused in words that name it; nothing else is."""
    import ingot

    if not folder.exists():
        return
    try:
        ingot.Casting.load(folder)
    except ingot.InputError as e:
        if "saving was interrupted" not in str(e):
            yield f"the folder does not load: {e}"


def is_whole(file: Path) -> bool:
    """By the rules of its format."""
    data = file.read_bytes()
    if file.suffix == ".json":
        with suppress(ValueError):
            json.loads(data)
            return True
        return False
    if file.suffix == ".pt2":
        return zipfile.is_zipfile(file) and zipfile.ZipFile(file).testzip() is None
    if file.suffix == ".html":
        return data.rstrip().endswith(b"</html>")
    return file.suffix != ".pte" or _is_whole_program(data)


def _is_whole_program(data: bytes) -> bool:
    """ExecuTorch's header says how long the program and its segments are."""
    if len(data) < 40 or data[4:6] != b"ET" or data[8:12] != b"eh00":
        return False
    program, segments = struct.unpack_from("<QQ", data, 16)
    length = struct.unpack_from("<Q", data, 32)[0] if struct.unpack_from("<I", data, 12)[0] >= 32 else 0
    return len(data) >= max(program, segments + length)
