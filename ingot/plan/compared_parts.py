"""What is compared of a program's results, as the check does: outputs, and the groups that an output joins.

Of an integer output, such as an argmax, also the numbers that decide it: how many integers differ says little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.capture.decisions import deciding_values
from ingot.capture.element_origin import joined_groups
from ingot.core.fx import is_float, output_nodes

SURE = 2.33  # standard deviations: a share of differing integers that is larger by chance in one of a hundred


@dataclass(frozen=True)
class ComparedParts:
    """`groups`: of the elements of an output, by its number. `deciding`: values that are no outputs."""

    groups: Mapping[int, Tensor]
    deciding: tuple[Node, ...]

    @classmethod
    def of(cls, module: GraphModule) -> ComparedParts:
        outputs = [n for n in output_nodes(module) if isinstance(n.meta.get("val"), Tensor)]
        joined = joined_groups(module)
        groups = {i: joined[n] for i, n in enumerate(outputs) if n in joined}
        deciding = dict.fromkeys(d for n in outputs if not is_float(n) for d in deciding_values(n))
        return cls(groups, tuple(deciding))

    def split(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Each group of an output by itself. What has other sizes than the example stays whole."""
        parts = list[Tensor]()
        for i, result in enumerate(results):
            groups = self.groups.get(i)
            if groups is None or groups.shape != result.shape:
                parts.append(result)
            else:
                parts += [result[groups == k] for k in range(int(groups.max()) + 1)]
        return parts


def noise_by_batch(expected: list[list[Tensor]], actual: list[list[Tensor]]) -> tuple[float, ...]:
    """Noise-to-signal ratio of each batch, the mean over parts, as in the planner."""
    pairs = (_numbers(_comparable(e, a)) for e, a in zip(expected, actual, strict=True))
    return tuple(max(sum(_noise_ratio(e, a) for e, a in batch) / len(batch), 1e-20) for batch in pairs if batch)


def worst_noise(expected: list[list[Tensor]], actual: list[list[Tensor]]) -> float:
    """Noise-to-signal ratio over all batches, of the worst part."""
    by_part = zip(zip(*expected, strict=True), zip(*actual, strict=True), strict=True)
    pairs = (_comparable(e, a) for e, a in by_part)
    joined = (([e.reshape(-1) for e, _ in each], [a.reshape(-1) for _, a in each]) for each in pairs if each)
    return max((_part_noise(torch.cat(e), torch.cat(a)) for e, a in joined), default=0.0)


def _comparable(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Without outputs whose size depends on values, where it is another one: boxes above a score."""
    return [(e, a) for e, a in zip(expected, actual, strict=True) if e.shape == a.shape]


def _numbers(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(e, a) for e, a in pairs if e.is_floating_point()]


def _part_noise(expected: Tensor, actual: Tensor) -> float:
    return (_noise_ratio if expected.is_floating_point() else _sure_mismatch)(expected, actual)


def _sure_mismatch(expected: Tensor, actual: Tensor) -> float:
    """The share of integers that differ, less what may be chance."""
    wrong = int((expected != actual).sum())
    return max(0.0, wrong - SURE * math.sqrt(wrong)) / max(expected.numel(), 1)


def _noise_ratio(expected: Tensor, actual: Tensor) -> float:
    """Over the elements that are finite in both: a mask may be infinite."""
    finite = expected.isfinite() & actual.isfinite()
    e, a = expected[finite].double(), actual[finite].double()
    return float((e - a).square().sum() / e.square().sum().clamp_min(1e-30))
