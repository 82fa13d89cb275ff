"""What recording costs: plain forward, ingot's record and torchao's HistogramObserver on every value, in alternation.

    python bench/record_cost.py [--rounds 7]

Prints the best time of each and its ratio to the plain forward: of the best times, and the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ingot.calibrate.recorder import record_module
from ingot.capture.export import capture_program as capture

# MobileNetV2's own table: expansion, channels, repeats, stride.
BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def conv(inner: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers = [nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outer)]
    return nn.Sequential(*layers, *([nn.ReLU6()] if act else []))


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, expand: int):
        super().__init__()
        wide = inner * expand
        self.skip = stride == 1 and inner == outer
        first = [conv(inner, wide)] if expand > 1 else []
        self.body = nn.Sequential(*first, conv(wide, wide, 3, stride, wide), conv(wide, outer, act=False))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, 32, 3, 2)]
        inner = 32
        for expand, outer, repeats, stride in BLOCKS:
            for i in range(repeats):
                layers.append(Block(inner, outer, stride if i == 0 else 1, expand))
                inner = outer
        self.features = nn.Sequential(*layers, conv(inner, 1280))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Observed(torch.fx.Interpreter):
    """What an observer on every value costs."""

    def __init__(self, module: torch.fx.GraphModule):
        from torchao.quantization.pt2e.observer import HistogramObserver

        super().__init__(module, garbage_collect_values=True)
        self.observers = {
            n: HistogramObserver() for n in module.graph.nodes if n.op in ("placeholder", "call_function")
        }

    def run_node(self, n: torch.fx.Node) -> object:
        result = super().run_node(n)
        if n in self.observers and isinstance(result, Tensor) and result.is_floating_point():
            self.observers[n](result)
        return result


def seconds(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def compare(size: int, rounds: int) -> None:
    batches = [(torch.randn(size, 3, 224, 224),) for _ in range(16)]
    module = capture(MobileNetV2(), batches[0]).module
    observed = Observed(module)
    runs: dict[str, Callable[[], object]] = {
        "plain": lambda: [module(*b) for b in batches],
        "record": lambda: record_module(module, batches),
        "observers": lambda: [observed.run(*b) for b in batches],
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name, run in runs.items():
            spent = seconds(run)
            if i:  # the first round warms up
                times[name].append(spent)
    ops = sum(n.op == "call_function" for n in module.graph.nodes)
    print(f"{len(batches)} batches of {size}, {ops} ops, {torch.get_num_threads()} threads, {rounds} rounds")
    for name, all_spent in times.items():
        ratio = statistics.median(a / b for a, b in zip(all_spent, times["plain"], strict=True))
        least = min(all_spent) / min(times["plain"])
        print(f"  {name:<10}{min(all_spent) * 1e3:9.1f} ms at best   {least:5.2f} x (best)   {ratio:5.2f} x (median)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with torch.no_grad():
        for size in (1, 4):
            compare(size, args.rounds)


if __name__ == "__main__":
    main()
