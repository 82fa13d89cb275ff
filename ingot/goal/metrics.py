"""Metrics over a data set. Each takes pairs of (outputs, expected), batch by batch, and returns one number.

Outputs have the structure that the model returns. Expected is the label of the batch; for metrics that compare with the
float model it is what that returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ingot.errors import InputError

Pairs = Iterable[tuple[Any, Any]]
MetricFunction = Callable[[Pairs], float]


@dataclass(frozen=True)
class Metric:
    """A metric and how it is read."""

    name: str
    function: MetricFunction
    higher_is_better: bool = True
    compares_with_float: bool = False  # then it needs no labels


# ---- with labels ----


def top_k(k: int = 1) -> Metric:
    """The share of samples whose label is among the k largest logits. The last axis holds the classes."""

    def metric(pairs: Pairs) -> float:
        right = total = 0
        for outputs, labels in pairs:
            logits, wanted = _logits(outputs), torch.as_tensor(labels)
            found = logits.topk(min(k, logits.shape[-1])).indices == wanted.reshape(*logits.shape[:-1], 1)
            right, total = right + int(found.any(-1).sum()), total + wanted.numel()
        return right / max(total, 1)

    return Metric(f"top{k}", metric)


def _perplexity(pairs: Pairs) -> float:
    """Labels are token ids, of the shape of the logits without their last axis; negative ids are left out."""
    loss, count = 0.0, 0
    for outputs, labels in pairs:
        logits, wanted = _logits(outputs), torch.as_tensor(labels).reshape(-1)
        rows = logits.reshape(-1, logits.shape[-1]).double()
        kept = wanted >= 0
        loss += float(torch.nn.functional.cross_entropy(rows[kept], wanted[kept], reduction="sum"))
        count += int(kept.sum())
    return math.exp(loss / max(count, 1))


def mean_iou(pairs: Pairs) -> float:
    """Labels are class maps (N, H, W); logits are (N, classes, H, W). Classes that occur nowhere are left out."""
    joint: dict[int, list[int]] = {}
    for outputs, labels in pairs:
        found, wanted = _logits(outputs).argmax(1), torch.as_tensor(labels)
        for c in torch.cat([found.unique(), wanted.unique()]).unique().tolist():
            counts = joint.setdefault(c, [0, 0])
            counts[0] += int(((found == c) & (wanted == c)).sum())
            counts[1] += int(((found == c) | (wanted == c)).sum())
    return sum(i / u for i, u in joint.values()) / max(len(joint), 1)


def word_error_rate(decode: Callable[[Any], Sequence[str]]) -> Metric:
    """`decode` turns the outputs of a batch into texts; labels are the texts."""

    def metric(pairs: Pairs) -> float:
        edits = words = 0
        for outputs, texts in pairs:
            for said, wanted in zip(decode(outputs), texts, strict=True):
                edits, words = edits + _edit_distance(said.split(), wanted.split()), words + len(wanted.split())
        return edits / max(words, 1)

    return Metric("WER", metric, higher_is_better=False)


def _edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Levenshtein's, over words."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


# ---- against the float model ----


def _cosine(pairs: Pairs) -> float:
    """The smallest cosine similarity of a sample to the float model's."""
    found = (_cosines(a.double(), b.double()) for outputs, expected in pairs for a, b in _tensors(outputs, expected))
    return min((float(c.min()) for c in found), default=1.0)


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """One for each sample; the first axis counts samples."""
    rows = (a.reshape(len(a), -1), b.reshape(len(b), -1)) if a.dim() > 1 else (a.reshape(1, -1), b.reshape(1, -1))
    both_zero = (rows[0].norm(dim=1) == 0) & (rows[1].norm(dim=1) == 0)
    return torch.where(both_zero, 1.0, torch.nn.functional.cosine_similarity(*rows, dim=1, eps=1e-30))


def _sqnr(pairs: Pairs) -> float:
    """In decibels, over all data; the lowest of all outputs."""
    power: dict[int, list[float]] = {}
    for outputs, expected in pairs:
        for i, (a, b) in enumerate(_tensors(outputs, expected)):
            sums = power.setdefault(i, [0.0, 0.0])
            sums[0] += float(b.double().square().sum())
            sums[1] += float((a.double() - b.double()).square().sum())
    return min((10 * math.log10(max(s, 1e-300) / max(n, 1e-20 * s, 1e-300)) for s, n in power.values()), default=200.0)


def _kl_divergence(pairs: Pairs) -> float:
    """Of the softmax over the last axis, in nats: the mean over all rows."""
    total, rows = 0.0, 0
    for outputs, expected in pairs:
        q, p = (torch.log_softmax(_logits(x).double(), -1) for x in (outputs, expected))
        total, rows = total + float((p.exp() * (p - q)).sum()), rows + p[..., 0].numel()
    return total / max(rows, 1)


NAMED: dict[str, Metric] = {
    m.name: m
    for m in (
        top_k(1),
        top_k(5),
        Metric("perplexity", _perplexity, higher_is_better=False),
        Metric("mean_iou", mean_iou),
        Metric("cosine", _cosine, compares_with_float=True),
        Metric("sqnr", _sqnr, compares_with_float=True),
        Metric("kl", _kl_divergence, higher_is_better=False, compares_with_float=True),
    )
}


def _tensors(outputs: Any, expected: Any) -> Iterator[tuple[Tensor, Tensor]]:
    for a, b in zip(pytree.tree_leaves(outputs), pytree.tree_leaves(expected), strict=True):
        if isinstance(b, Tensor) and b.is_floating_point() and b.numel():
            yield a, b


def _logits(outputs: Any) -> Tensor:
    """The one tensor that is returned, or the one that is named logits."""
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        return outputs["logits"]
    found = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
    if len(found) != 1:
        why, hint = f"the model returns {len(found)} float tensors", "give a function of your own: metric(pairs)"
        raise InputError("the metric needs logits, and it is not clear which output they are", why=why, hint=hint)
    return found[0]
