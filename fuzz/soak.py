"""`make soak`: many casts in one process. Memory, children, temporary files and descriptors must not grow."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.kills import kills

TARGETS = ("xnnpack", "xnnpack", "xnnpack", "vulkan", "ethos-u55-128", "vgf")
MOST_GROWTH = 0.05  # from the first mark to the last
PROGRAMS = 50  # in turn, so that caches by shape are full at the first mark and what grows after it is a leak


@dataclass(frozen=True)
class Usage:
    """What this process holds."""

    casts: int
    megabytes: float  # resident, with pages of libraries that were touched
    objects: int
    tensors: int
    descriptors: int
    children: int
    temporary_files: int
    anonymous: float = 0.0  # megabytes without the pages of libraries

    def __str__(self) -> str:
        return (
            f"{self.casts:4} casts: {self.megabytes:7.0f} MB ({self.anonymous:.0f} anonymous), "
            f"{self.objects} objects, {self.tensors} tensors, "
            f"{self.descriptors} descriptors, {self.children} children, {self.temporary_files} temporary files"
        )


def usage_now(casts: int) -> Usage:
    """After a full collection, with free memory given back."""
    from torch import Tensor

    from ingot.core.host_memory import trim_heap

    trim_heap(graphs=True)
    objects = gc.get_objects()
    tensors = sum(issubclass(type(o), Tensor) for o in objects)  # isinstance would ask proxies for their class
    folder = Path(tempfile.gettempdir())
    return Usage(
        casts, _resident_bytes() / 2**20, len(objects), tensors, len(os.listdir("/proc/self/fd")), len(_children()),
        sum(1 for _ in folder.rglob("*")), _anonymous_bytes() / 2**20,
    )  # fmt: skip


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _anonymous_bytes() -> int:
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Anonymous:")) * 1024


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(p) for p in text.split()]


def cast_number(number: int, targets: Sequence[str]) -> str:
    """Several nets and targets in turn; a refusal is a result too."""
    import ingot
    from fuzz.generate import draw_program
    from fuzz.judge import cast_program, eager_outputs

    program = draw_program(number, targets[number % len(targets)])
    try:
        eager_outputs(program)
        cast_program(program)
    except ingot.IngotError as e:
        return type(e).__name__
    except Exception as e:
        return f"bug: {type(e).__name__}"
    return "cast"


def soak(casts: int, first_mark: int, every: int, targets: Sequence[str], programs: int) -> int:
    """0 if nothing grew between the first mark and the last."""
    _quiet()
    with tempfile.TemporaryDirectory(prefix="ingot-soak-") as folder:
        tempfile.tempdir = folder  # what stays in here was forgotten by a cast
        os.environ["TMPDIR"] = folder
        marks, outcomes, types = list[Usage](), Counter[str](), Counter[str]()
        for n in range(1, casts + 1):
            outcomes[cast_number((n - 1) % programs + 1, targets)] += 1
            if n in (first_mark, casts) or (n > first_mark and n % every == 0):
                marks.append(usage_now(n))
                print(marks[-1], flush=True)
                if n == first_mark:
                    types = _types()
        print(dict(outcomes))
        for name, more in (_types() - types).most_common(12):
            print(f"  {more:+7} {name}")
        _stop_worker()
        left = [*_children(), *(str(p) for p in Path(folder).rglob("*"))]
    tempfile.tempdir = None
    return _verdict(marks[0], marks[-1], left)


def _quiet() -> None:
    """Backends log every step."""
    import torch._inductor.compiler_bisector  # noqa: F401  makes torch's cache folder of this user, not one of a cast

    import ingot  # noqa: F401  some of them add handlers when they are imported

    logging.basicConfig()
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _types() -> Counter[str]:
    gc.collect()
    return Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())


def _stop_worker() -> None:
    from ingot.runtime.worker import stop_worker

    stop_worker()


def _verdict(first: Usage, last: Usage, left: list[Any]) -> int:
    problems = [f"left behind: {left[:10]}"] if left else []
    if last.megabytes > first.megabytes * (1 + MOST_GROWTH):
        problems.append(f"memory grew from {first.megabytes:.0f} to {last.megabytes:.0f} MB")
    if last.descriptors > first.descriptors + 2:
        problems.append(f"descriptors grew from {first.descriptors} to {last.descriptors}")
    if last.children > max(first.children, 1):
        problems.append(f"children grew from {first.children} to {last.children}")
    if last.temporary_files > first.temporary_files + 5:
        problems.append(f"temporary files grew from {first.temporary_files} to {last.temporary_files}")
    print("\n".join(problems) or "nothing grew")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.soak", description=__doc__)
    parser.add_argument("casts", type=int, nargs="?", default=500)
    parser.add_argument("--mark", type=int, default=50, help="casts before the first measurement")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--targets", nargs="+", default=TARGETS, help="in turn")
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="how many different ones, in turn")
    parser.add_argument("--kills", type=int, default=20)
    asked = parser.parse_args()
    damaged = kills(asked.kills) if asked.kills else 0  # first: it forks this process
    grown = soak(asked.casts, asked.mark, asked.every, asked.targets, asked.programs) if asked.casts else 0
    return max(damaged, grown)


if __name__ == "__main__":
    sys.exit(main())
