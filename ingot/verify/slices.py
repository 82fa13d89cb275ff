"""Sums over the slices of an output: its channels, its rows, its samples, and each group of joined channels.

Differences are given in units of the rounding noise of their group, so that boxes in pixels and scores beside them
count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ingot.capture.element_origin import Origin

MOST_VALUES = 1 << 20  # of which the correlation of the noise is estimated


@dataclass(frozen=True)
class Differences:
    """One output by batch, each tensor divided by the noise of its group. Elements that are not finite are zero."""

    graph: list[Tensor]  # artefact - quantized graph
    noise: list[Tensor]  # quantized graph - float model
    signal: list[Tensor]  # float model
    floor: list[Tensor]  # what float arithmetic may differ by
    finite: list[Tensor]
    origins: list[Origin]
    unit: list[Tensor]  # the noise of each element's group
    noisy: list[list[Tensor]] = field(default_factory=list)  # by run: graph with rounding noise - quantized graph


@dataclass(frozen=True)
class View:
    """A way to slice an output: the number of its slice, for each element."""

    kind: str  # "output", "channel", "axis 2"; in a joined group: "group", "channel in group", "axis 2 in group"
    keys: list[Tensor]
    size: int  # slices in one group
    groups: int = 1

    @property
    def slices(self) -> int:
        return self.size * self.groups


@dataclass(frozen=True)
class Slices:
    """Sums over each slice of a view."""

    view: View
    count: Tensor  # of values
    graph: Tensor  # sums of squares, as in Differences
    noise: Tensor
    fourth: Tensor  # of the noise: sums of fourth powers
    error: Tensor  # artefact - float model
    floor: Tensor
    signal: Tensor
    mean: Tensor  # of the float model
    samples: Tensor  # from how many independent values the noise is known
    share: float = field(default=1.0)  # of values that are independent


def views(like: Sequence[Tensor], origins: Sequence[Origin]) -> Iterator[View]:
    """The output, its channels, and its slices along every axis; within joined groups too."""
    groups = [o.groups for o in origins]
    number = _size(groups)
    for kind, keys in _ungrouped(like, origins):
        size = _size(keys)
        yield View(kind, keys, size)
        if number > 1:
            inside = [k if g is None else g * size + k for k, g in zip(keys, groups, strict=True)]
            yield View("group" if kind == "output" else f"{kind} in group", inside, size, number)


def _ungrouped(like: Sequence[Tensor], origins: Sequence[Origin]) -> Iterator[tuple[str, list[Tensor]]]:
    yield "output", [torch.zeros((), dtype=torch.int64).expand(t.shape) for t in like]
    channels = [o.channels for o in origins if o.channels is not None]
    if len(channels) == len(like):
        yield "channel", channels
    for axis in range(like[0].dim()):
        keys = [_index(t, axis) for t in like]
        known = len(channels) == len(like) and all(map(torch.equal, keys, channels))
        if max(t.shape[axis] for t in like) > 1 and not known:
            yield f"axis {axis}", keys


def _size(keys: Sequence[Tensor | None]) -> int:
    return 1 + max((int(k.max()) for k in keys if k is not None and k.numel()), default=0)


def _index(like: Tensor, axis: int) -> Tensor:
    """The index of each element along the axis."""
    return torch.arange(like.shape[axis]).view(-1, *[1] * (like.dim() - 1 - axis)).expand(like.shape)


def summed(given: Differences, view: View) -> Slices:
    """The sums of a view."""

    def total(values: Callable[[int], Tensor]) -> Tensor:
        return slice_sums((values(i) for i in range(len(view.keys))), view)

    count, noise = total(lambda i: given.finite[i].double()), total(lambda i: given.noise[i].square())
    fourth = total(lambda i: given.noise[i].square().square())
    share = independent_share(given.noise, view)
    return Slices(
        view, count, total(lambda i: given.graph[i].square()), noise, fourth,
        total(lambda i: (given.graph[i] + given.noise[i]).square()), total(lambda i: given.floor[i].square()),
        total(lambda i: given.signal[i].square()), total(lambda i: given.signal[i]) / count.clamp(min=1),
        _known_from(noise, fourth, count) * share, share,
    )  # fmt: skip


def with_noisy_runs(given: Differences, slices: Slices) -> Slices:
    """The noise of each slice, at least as large as runs of the graph with rounding noise show it.

    Where the graph is constant, its difference from the float model is not noise, but the signal that was lost.
    """
    squares, fourths = (
        torch.stack([slice_sums((t.abs() ** power for t in run), slices.view) for run in given.noisy])
        for power in (2, 4)
    )
    noise = squares.mean(0) / 2  # two runs differ by the noise of both
    samples = _known_from(squares, fourths, slices.count).mean(0) * slices.share
    larger = noise > slices.noise
    return replace(
        slices,
        noise=torch.maximum(slices.noise, noise),
        fourth=torch.where(larger, fourths.mean(0) / 4, slices.fourth),
        samples=torch.where(larger, samples, slices.samples),
    )


def _known_from(squares: Tensor, fourths: Tensor, count: Tensor) -> Tensor:
    """From how many values a variance is known: few, if few make it up. A Gaussian has a kurtosis of 3."""
    return torch.minimum(torch.where(fourths > 0, 3 * squares.square() / fourths, 0.0), count)


def slice_sums(values: Iterator[Tensor], view: View) -> Tensor:
    """The sum over each slice, over all batches."""
    made = torch.zeros(view.slices, dtype=torch.float64)
    for value, key in zip(values, view.keys, strict=True):
        made += torch.bincount(key.reshape(-1), value.double().reshape(-1), minlength=view.slices)
    return made


def independent_share(noise: Sequence[Tensor], view: View) -> float:
    """The share of the values of a slice that are independent: 1 for white noise, 1/64 after an upsampling by 8 x 8.

    A sum of squares over correlated values scatters like one over (sum S)^2 / sum S^2 independent ones, where S is the
    power spectrum of a slice. S is averaged over m slices, so the expectation of its square is 1 + 1/m times too large.
    """
    rows = _rows(noise, view)
    if rows.shape[1] < 2 or not rows.any():
        return 1.0
    power = torch.fft.fft(rows).abs().square().mean(0)
    effective = float(power.sum().square() / power.square().sum()) * (1 + 1 / len(rows))
    return min(1.0, max(1.0, effective) / rows.shape[1])


def _rows(noise: Sequence[Tensor], view: View) -> Tensor:
    """One row for each slice; groups and batches of other shapes are left out."""
    found, values = list[Tensor](), 0
    for value, key in zip(noise, view.keys, strict=True):
        values += value.numel()
        if values <= MOST_VALUES and (rows := _sorted_rows(value.reshape(-1), key.reshape(-1))) is not None:
            found.append(rows)
    alike = [rows for rows in found if len(rows) == len(found[0])]
    return torch.cat(alike, 1) if alike else noise[0].reshape(1, -1)[:, :MOST_VALUES]


def _sorted_rows(values: Tensor, keys: Tensor) -> Tensor | None:
    """The values of each key as a row; None if their numbers differ."""
    counts = keys.bincount()
    counts = counts[counts > 0]
    if not len(counts) or bool((counts != counts[0]).any()):
        return None
    return values[keys.argsort(stable=True)].view(len(counts), -1)
