"""Integer outputs (an argmax, a mask): equal to the quantized graph, except where the graph itself is near a tie.

Which elements are near a tie is found by running the graph again, with the rounding noise of float arithmetic added to
every computed value. In a deep int8 net such noise grows into independent rounding noise, as it does in the artefact.
So the artefact may have any value that some run had. Each run is held against the others in the same way: that many
values of its own are usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ingot.verify.chance import count_chance

RUNS = 8  # with other noise each, but for the last
IN_FLOAT32_RUN = RUNS - 1  # without noise: whether two computed numbers are equal shows only there
SIGNIFICANT = 1e-6

Rerun = Callable[[int], Sequence[Tensor]]  # the output of one noisy run, by batch


def integer_mismatch(graph: Sequence[Tensor], artefact: Sequence[Tensor], rerun: Rerun | None) -> str | None:
    """How integers differ from the quantized graph; None if they are equal or near a tie."""
    want, got = _flat(graph), _flat(artefact)
    if torch.equal(want, got):
        return None
    noisy = [_flat(rerun(i)) for i in range(RUNS)] if rerun else []
    usual = [_values_of_its_own(run, [want, *noisy[:i], *noisy[i + 1 :]]) for i, run in enumerate(noisy)]
    wrong = _values_of_its_own(got, [want, *noisy])
    chance = _chance(wrong, usual)
    if chance >= SIGNIFICANT:
        return None
    return (
        f"artefact and quantized graph disagree: {wrong} of {got.numel()} integers differ where the graph is not near "
        f"a tie, {max(usual, default=0)} in {len(usual)} runs of the graph with rounding noise; chance {chance:.0e}"
    )


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _values_of_its_own(run: Tensor, others: Sequence[Tensor]) -> int:
    """How many values no other run has at that place."""
    return int(torch.stack([run != other for other in others]).all(0).sum())


def _chance(wrong: int, usual: Sequence[int]) -> float:
    """That one run of RUNS + 1 has so many of all differing values; differing values come in clusters."""
    if wrong == 0:
        return 1.0
    counts = torch.tensor(usual, dtype=torch.float64)
    cluster = max(1.0, float(counts.var() / counts.mean())) if counts.any() else 1.0
    if not counts.any():
        return 0.0
    return count_chance(wrong / cluster, (wrong + float(counts.sum())) / cluster, 1 / (len(usual) + 1))
