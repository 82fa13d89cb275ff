"""Look at, run and time a .pte: the same functions for either flow, knowing nothing of how it was made."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.entry import Entry, Inputs
from bench.settle import outputs_of

MOST_DB = 150.0


class Artefact:
    """A loaded program on the ExecuTorch runtime."""

    def __init__(self, path: Path):
        import executorch.kernels.quantized  # noqa: F401  the runtime has no quantized kernels without it
        from executorch.runtime import Runtime, Verification

        self.program = Runtime.get().load_program(path, verification=Verification.Minimal)
        self.method = self.program.load_method("forward")

    def run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        return list(self.method.execute(inputs))


def instructions(path: Path) -> dict[str, int]:
    """How many delegate calls and kernel calls the program itself holds: a check on what each flow says of itself.

    host_integer: the kernels that read or give indices, masks and the like, which no delegate here takes.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary

    plan = deserialize_pte_binary(path.read_bytes()).program.execution_plan[0]
    calls = [i.instr_args for chain in plan.chains for i in chain.instructions]
    kinds = [type(call).__name__ for call in calls]
    kernels = [call for call, kind in zip(calls, kinds, strict=True) if kind == "KernelCall"]
    integers = sum(_has_integers(plan, call) for call in kernels)
    return {"delegate_calls": kinds.count("DelegateCall"), "kernel_calls": len(kernels), "host_integer": integers}


def _has_integers(plan: Any, call: Any) -> bool:
    types = [getattr(plan.values[a].val, "scalar_type", None) for a in call.args]
    return any(getattr(t, "name", "") in ("LONG", "INT", "BOOL", "BYTE") for t in types)


@torch.no_grad()
def quality(entry: Entry, path: Path) -> dict[str, Any]:
    """SQNR against the float model over the held-out (or the calibration) batches, and top-1 of a classifier."""
    artefact = Artefact(path)
    batches = entry.held_out or entry.calibration
    return {**judged(entry, batches, (artefact.run(b) for b in batches)), **_top1(entry, artefact)}


@torch.no_grad()
def judged(entry: Entry, batches: Sequence[Inputs], made: Iterable[list[Tensor]]) -> dict[str, Any]:
    """SQNR of what was made of each batch: mean over the batches, the worst of the outputs."""
    rows = []
    for batch, got in zip(batches, made, strict=True):
        expected = outputs_of(entry, batch)
        got = entry.judge(got) if entry.judge else got
        if len(got) != len(expected):
            raise ValueError(f"the program returns {len(got)} outputs, the model {len(expected)}")
        rows.append([sqnr(e, g) for e, g in zip(expected, got, strict=True)])
    means = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    return {"sqnr_db": min(means), "sqnr_by_output": means, "judged_on": len(rows)}


def _top1(entry: Entry, artefact: Artefact) -> dict[str, float]:
    """The share of right answers of the float model and of the artefact; {} for what is no classifier."""
    if entry.exam is None:
        return {}
    images, labels = entry.exam
    got = torch.cat([artefact.run((image.unsqueeze(0),))[0].clone() for image in images])
    return {"top1_float": _right(entry.model(images), labels), "top1": _right(got, labels)}


def _right(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).double().mean().item()


def sqnr(expected: Tensor, got: Tensor) -> float:
    """Signal to error in dB, kept within ±150; a shape or a value that is no number counts as the worst."""
    if expected.shape != got.shape or not torch.isfinite(got.float()).all():
        return -MOST_DB
    signal, error = expected.double().square().sum().item(), (expected.double() - got.double()).square().sum().item()
    if error == 0.0:
        return MOST_DB
    return max(-MOST_DB, min(MOST_DB, 10 * math.log10(max(signal, 1e-300) / error)))


def latency(inputs: tuple[Tensor, ...], paths: dict[str, Path], rounds: int, budget: float = 60.0) -> dict[str, Any]:
    """Seconds per run of each program, taking turns round by round so that all share the machine's noise."""
    artefacts = {name: Artefact(path) for name, path in paths.items()}
    repeats = max(_repeats(artefact, inputs) for artefact in artefacts.values())
    times: dict[str, list[float]] = {name: [] for name in artefacts}
    until = time.perf_counter() + budget
    for turn in range(rounds):
        order = list(artefacts) if turn % 2 == 0 else list(reversed(artefacts))
        for name in order:
            times[name].append(_seconds(artefacts[name], inputs, repeats))
        if turn >= 4 and time.perf_counter() > until:
            break
    return {
        **{name: _summary(values) for name, values in times.items()},
        "load": os.getloadavg()[0],
        **_interval(times),
    }


def _interval(times: dict[str, list[float]], draws: int = 2000) -> dict[str, Any]:
    """Where the ratio of the two medians lies with 95 % confidence (rounds drawn again, in pairs); {} without a pair.

    On a busy machine a program timed against its own copy differs by 20 %: without this, noise reads as a result.
    """
    if len(times) != 2:
        return {}
    first, second = (torch.tensor(t) for t in times.values())
    picks = torch.randint(len(first), (draws, len(first)), generator=torch.Generator().manual_seed(0))
    ratios = second[picks].quantile(0.5, 1) / first[picks].quantile(0.5, 1)
    low, high = ratios.quantile(torch.tensor([0.025, 0.975])).tolist()
    return {"ratio_low": low, "ratio_high": high}


def _seconds(artefact: Artefact, inputs: tuple[Tensor, ...], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        artefact.run(inputs)
    return (time.perf_counter() - started) / repeats


def _repeats(artefact: Artefact, inputs: tuple[Tensor, ...], at_least: float = 0.005) -> int:
    """Warm up, and say how many runs make a time the clock can measure."""
    _seconds(artefact, inputs, 3)
    return math.ceil(at_least / _seconds(artefact, inputs, 3))


def _summary(seconds: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {
        "median_ms": 1e3 * middle,
        "least_ms": 1e3 * min(seconds),
        "quarter_ms": 1e3 * low,
        "three_quarter_ms": 1e3 * high,
        "rounds": len(seconds),
    }
