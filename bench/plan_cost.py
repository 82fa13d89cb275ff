"""Planning time against the number of ops: ten times the ops should cost less than ten times the time.

    python -m bench.plan_cost [--ops 1000 10000] [--rounds 5]

`cold` is ingot.plan with every cache empty: rewriting for the target, experiments on the ops, solving. `solve` is the
solver alone, once the experiments are known. The blocks repeat, so there are as many experiments in a long program as
in a short one: read the growth off `solve` and `rewrite`. Planning is timed in seconds of one core, which other work
on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

import ingot
from ingot.capture.op_semantics import probe
from ingot.result import plan_for_target
from ingot.rewrite import apply as rewriting
from ingot.targets import edge_ops

WIDTH, SIDE, OPS_PER_BLOCK = 4, 4, 17
Times = dict[str, list[float]]


class Block(nn.Module):
    """A chain with branches: ops that move, join, select and compute, on 64 numbers, so that running them is cheap."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.merge, self.mix = nn.Conv2d(2 * WIDTH, WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.relu(self.left(x)), torch.sigmoid(self.right(x))
        y = self.merge(torch.cat([left, right], 1))
        y = self.mix(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = torch.cat([y[:, WIDTH // 2 :], y[:, : WIDTH // 2]], 1) + x
        return torch.clamp(y * torch.tanh(right) - left, -4.0, 4.0)  # bounded, however long the chain


class Watch:
    """Replaces the solver within ingot.plan and records how long each call took, with the plans of all estimators."""

    def __init__(self) -> None:
        self.solve_each, self.seconds = plan_for_target.solve_each, list[float]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        plans = list(self.solve_each(*args, **kwargs))
        self.seconds.append(time.process_time() - started)
        return plans


def forget() -> None:
    """As in a new process."""
    rewriting._known_rewrites.clear()
    probe._effects.drop_oldest(0)
    edge_ops._known.drop_oldest(0)


def recorded(wanted: int) -> tuple[ingot.Program, ingot.Ranges, int]:
    """A program of about that many ops, its ranges, and how many ops it has in canonical form."""
    torch.manual_seed(0)
    batches = [(torch.randn(1, WIDTH, SIDE, SIDE),) for _ in range(2)]
    started = time.perf_counter()
    program = ingot.capture(nn.Sequential(*(Block() for _ in range(wanted // OPS_PER_BLOCK + 1))), batches[0])
    captured = time.perf_counter()
    ranges = ingot.record(program, batches)
    ops = sum(n.op == "call_function" for n in program.module.graph.nodes)
    ended = time.perf_counter()
    print(f"{ops} ops: captured in {captured - started:.1f} s, recorded in {ended - captured:.1f} s", flush=True)
    return program, ranges, ops


def measure(program: ingot.Program, ranges: ingot.Ranges, rounds: int, watch: Watch) -> Times:
    """Each round plans twice: with nothing known, and again with all of it known but the plan."""
    times: Times = {"cold": [], "rewrite": [], "solve": []}
    for _ in range(rounds):
        forget()
        cold = _seconds(program, ranges)
        first = watch.seconds[-1]
        _seconds(program, ranges)
        times["cold"].append(cold)
        times["rewrite"].append(cold - first)
        times["solve"].append(watch.seconds[-1])
    return times


def _seconds(program: ingot.Program, ranges: ingot.Ranges) -> float:
    started = time.process_time()
    ingot.plan(program, ranges, "xnnpack")
    return time.process_time() - started


def show(times: Times) -> None:
    for name, spent in times.items():
        print(f"  {name:8} {statistics.median(spent):8.3f} s   ({min(spent):.3f} … {max(spent):.3f})", flush=True)


def compare(ops: list[int], found: list[Times]) -> None:
    growth = ops[-1] / ops[0]
    print(f"{growth:.1f} times the ops cost")
    for name in found[0]:
        ratio = statistics.median(found[-1][name]) / statistics.median(found[0][name])
        print(f"  {name:8} {ratio:8.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)  # or waiting threads would count as work
    watch = plan_for_target.solve_each = Watch()
    sizes, found = [], []
    for wanted in options.ops:
        program, ranges, ops = recorded(wanted)
        times = measure(program, ranges, options.rounds, watch)
        show(times)
        sizes.append(ops)
        found.append(times)
    if len(sizes) > 1:
        compare(sizes, found)


if __name__ == "__main__":
    main()
