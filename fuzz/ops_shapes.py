"""Ops that move, select, join, reduce or create numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.ops import (
    DEEPEST,
    LONGEST,
    MOST,
    OPS,
    Drawn,
    Op,
    Values,
    a_dim,
    attr,
    dim_and_keep,
    dims_and_keep,
    of_rank,
    partner,
    same,
)  # fmt: skip


def two_dims(r: Random, x: Tensor, v: Values) -> Drawn:
    return ((), {"a": r.randrange(-x.dim(), x.dim()), "b": r.randrange(-x.dim(), x.dim())})


def permuted(r: Random, x: Tensor, v: Values) -> Drawn:
    return (), {"dims": r.sample(range(x.dim()), x.dim())}


def reshaped(r: Random, x: Tensor, v: Values) -> Drawn:
    """Factors of its size in a random order."""
    if not x.numel():
        return None
    left, sizes = x.numel(), list[int]()
    while left > 1 and len(sizes) < 4:
        d = r.choice([d for d in range(1, left + 1) if left % d == 0][1:])
        sizes, left = [*sizes, d], left // d
    sizes = [*sizes, left] if left > 1 or not sizes else sizes
    r.shuffle(sizes)
    return (), {"shape": [-1, *sizes[1:]] if r.random() < 0.3 else sizes}


def window(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim() or not x.numel():
        return None
    d = r.randrange(x.dim())
    start = r.randrange(x.shape[d])
    return (), {"d": d, "start": start, "end": r.randint(start + 1, x.shape[d]), "step": r.randint(1, 3)}


def element(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim() or not x.numel():
        return None
    d = r.randrange(x.dim())
    return (), {"d": d, "i": r.randrange(-x.shape[d], x.shape[d])}


def pieces(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim() or not x.numel():
        return None
    d = r.randrange(x.dim())
    return ((), {"d": d - x.dim() * r.randint(0, 1), "n": r.randint(1, 4)}) if x.shape[d] <= 8 else None


def indices(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim() or not x.numel():
        return None
    d = r.randrange(x.dim())
    return (), {"d": d, "index": [r.randrange(x.shape[d]) for _ in range(r.randint(1, min(6, x.shape[d] + 1)))]}


def growing(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim() or x.numel() * 2 > MOST or not x.numel():
        return None
    d = r.randrange(x.dim())
    return (
        ((), {"d": d, "n": r.randint(1, 2), "value": r.choice([0.0, 1.0, -0.5, 3.0])})
        if x.shape[d] * 2 <= LONGEST
        else None
    )


def several(r: Random, x: Tensor, v: Values, axis: int | None) -> tuple[str, ...] | None:
    """Operands of a join with `x`; None if none fits."""

    def rest(t: Tensor) -> Any:
        return (t.dtype, tuple(n for i, n in enumerate(t.shape) if i != axis), t.dim())

    found = [n for n, t in v.items() if rest(t) == rest(x) and t.numel() * 3 <= MOST]
    return tuple(r.choice(found) for _ in range(r.randint(1, 3))) if found else None


def concatenated(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim():
        return None
    d = r.randrange(x.dim())
    more = several(r, x, v, d)
    return (more, {"d": d - x.dim() * r.randint(0, 1)}) if more else None


def stacked(r: Random, x: Tensor, v: Values) -> Drawn:
    more = several(r, x, v, None)
    return (more, {"d": r.randint(0, x.dim())}) if more and x.dim() < DEEPEST else None


def padded(r: Random, x: Tensor, v: Values) -> Drawn:
    if x.dim() < 2 or not x.numel() or x.numel() * 3 > MOST:
        return None
    mode = r.choice(["constant", "constant", "reflect", "replicate", "circular"])
    if mode == "constant":
        pad = [r.randint(-1 if min(x.shape) > 2 else 0, 2) for _ in range(2 * r.randint(1, x.dim()))]
        return (), {"pad": pad, "mode": mode, "value": r.choice([0.0, 0.0, 1.0, -7.5])}
    if x.dim() not in (3, 4) or min(x.shape[2:]) < 2:
        return None
    return (), {"pad": [r.randint(0, 1) for _ in range(2 * (x.dim() - 2))], "mode": mode, "value": None}


def sliced(x: Tensor, d: int, start: int, end: int, step: int) -> Tensor:
    return x[(slice(None),) * d + (slice(start, end, step),)]


def gathered(x: Tensor, d: int, index: list[int]) -> Tensor:
    shape = [1] * x.dim()
    shape[d] = len(index)
    wanted = [len(index) if i == d else n for i, n in enumerate(x.shape)]
    return x.gather(d, torch.tensor(index).view(shape).expand(wanted))


def scattered(x: Tensor, y: Tensor, d: int, index: list[int]) -> Tensor:
    kept = sorted(set(index))
    return x.index_copy(d, torch.tensor(kept), y.index_select(d, torch.tensor(kept)))


def with_partner(draw: Any) -> Any:
    def both(r: Random, x: Tensor, v: Values) -> Drawn:
        one, other = partner(same)(r, x, v), draw(r, x, v)
        return None if one is None or other is None else (one[0], other[1])

    return both


def top(r: Random, x: Tensor, v: Values) -> Drawn:
    drawn = a_dim(r, x, v)
    return None if drawn is None else ((), {**drawn[1], "k": r.randint(1, x.shape[drawn[1]["dim"]])})


ANY: dict[str, Any] = {"reads": "any"}
OPS |= {
    "permute": Op(lambda x, w, dims: x.permute(dims), of_rank(1, 5, permuted), often=3, **ANY),
    "transpose": Op(lambda x, w, a, b: x.transpose(a, b), of_rank(1, 5, two_dims), often=2, **ANY),
    "moveaxis": Op(lambda x, w, a, b: torch.moveaxis(x, a, b), of_rank(1, 5, two_dims), **ANY),
    "reshape": Op(lambda x, w, shape: x.reshape(shape), reshaped, often=4, **ANY),
    "flatten_from": Op(lambda x, w, dim: x.flatten(dim if dim >= 0 else dim + x.dim()), a_dim),
    "unsqueeze": Op(lambda x, w, dim: x.unsqueeze(dim), lambda r, x, v: ((), {"dim": r.randint(-x.dim() - 1, x.dim())}) if x.dim() < DEEPEST else None, **ANY),
    "squeeze": Op(lambda x, w: x.squeeze(), **ANY),
    "squeeze_dim": Op(lambda x, w, dim: x.squeeze(dim), a_dim),
    "slice": Op(lambda x, w, **a: sliced(x, **a), window, often=3, **ANY),
    "narrow": Op(lambda x, w, d, start, end, step: x.narrow(d, start, end - start), window),
    "select": Op(lambda x, w, d, i: x.select(d, i), element, often=2, **ANY),
    "chunk": Op(lambda x, w, d, n: x.chunk(n, d), pieces, often=2),
    "split": Op(lambda x, w, d, n: x.split(n, d), pieces, often=2),
    "unbind": Op(lambda x, w, d, n: x.unbind(d), pieces, often=2),
    "tensor_split": Op(lambda x, w, d, n: [t for t in x.tensor_split(n, d) if t.numel()], pieces),
    "index_select": Op(lambda x, w, d, index: x.index_select(d, torch.tensor(index)), indices, **ANY),
    "advanced_index": Op(lambda x, w, d, index: x[(slice(None),) * d + (torch.tensor(index),)], indices),
    "gather": Op(lambda x, w, d, index: gathered(x, d, index), indices),
    "index_copy": Op(lambda x, y, w, d, index: scattered(x, y, d, index), with_partner(indices)),
    "index_add": Op(lambda x, w, d, index: x.index_add(d, torch.tensor(index), x.index_select(d, torch.tensor(index))), indices),
    "slice_write": Op(lambda x, y, w, d, start, end, step: x.slice_scatter(sliced(y, d, start, end, step), d, start, end, step), with_partner(window), often=2),
    "select_write": Op(lambda x, y, w, d, i: x.select_scatter(y.select(d, i), d, i), with_partner(element)),
    "flip": Op(lambda x, w, dim: x.flip(dim), a_dim),
    "roll": Op(lambda x, w, dim: x.roll(2, dim), a_dim),
    "rot90": Op(lambda x, w: torch.rot90(x), of_rank(2, 4), often=0.5),
    "tril": Op(lambda x, w, k: x.tril(k), of_rank(2, 4, attr(k=[0, 1, -1]))),
    "diagonal": Op(lambda x, w: x.diagonal(dim1=-2, dim2=-1), of_rank(2, 4), often=0.5),
    "repeat": Op(lambda x, w, d, n, value: x.repeat([n if i == d else 1 for i in range(x.dim())]), growing, **ANY),
    "repeat_interleave": Op(lambda x, w, d, n, value: x.repeat_interleave(n, d), growing),
    "expand": Op(lambda x, w: x.unsqueeze(0).expand(2, *x.shape), lambda r, x, v: ((), {}) if x.dim() < DEEPEST and x.numel() * 2 <= MOST else None, **ANY),
    "unfold": Op(lambda x, w: x.unfold(-1, 2, 1), lambda r, x, v: ((), {}) if 1 <= x.dim() < DEEPEST and x.shape[-1] >= 2 and x.numel() * 2 <= MOST else None, often=0.5),
    "pixel_shuffle": Op(lambda x, w: F.pixel_shuffle(x, 2), lambda r, x, v: ((), {}) if x.dim() == 4 and x.shape[1] % 4 == 0 else None, often=2),
    "pixel_unshuffle": Op(lambda x, w: F.pixel_unshuffle(x, 2), lambda r, x, v: ((), {}) if x.dim() == 4 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 else None),
    "channel_shuffle": Op(lambda x, w: F.channel_shuffle(x, 2), lambda r, x, v: ((), {}) if x.dim() == 4 and x.shape[1] % 2 == 0 else None),
    "pad": Op(lambda x, w, **a: F.pad(x, **a), padded, often=3),
    "channels_last": Op(lambda x, w: x.contiguous(memory_format=torch.channels_last), of_rank(4, 4)),
    "cat": Op(lambda *xs, w, d: torch.cat(xs, d), concatenated, often=6, **ANY),
    "stack": Op(lambda *xs, w, d: torch.stack(xs, d), stacked, often=3, **ANY),
    # reductions
    "sum": Op(lambda x, w, **a: x.sum(**a), dims_and_keep, often=2, **ANY),
    "mean": Op(lambda x, w, **a: x.mean(**a), dims_and_keep, often=3),
    "amax": Op(lambda x, w, **a: x.amax(**a), dims_and_keep, often=2),
    "amin": Op(lambda x, w, **a: x.amin(**a), dims_and_keep),
    "var": Op(lambda x, w, **a: x.var(correction=0, **a), dims_and_keep),
    "std": Op(lambda x, w, **a: x.std(correction=0, **a), dims_and_keep),
    "logsumexp": Op(lambda x, w, **a: x.logsumexp(**a), dims_and_keep),
    "vector_norm": Op(lambda x, w, **a: torch.linalg.vector_norm(x, **a), dims_and_keep),
    "prod": Op(lambda x, w, **a: x.prod(**a), dim_and_keep, often=0.5),
    "max_dim": Op(lambda x, w, **a: x.max(**a), dim_and_keep),
    "median": Op(lambda x, w, **a: x.median(**a), dim_and_keep, often=0.3),
    "argmax": Op(lambda x, w, **a: x.argmax(**a), dim_and_keep),
    "any": Op(lambda x, w, **a: (x > 0.5).any(**a), dim_and_keep, often=0.5),
    "topk": Op(lambda x, w, dim, k: x.topk(k, dim), top),
    "sort": Op(lambda x, w, dim: x.sort(dim), a_dim, often=0.5),
    "cumsum": Op(lambda x, w, dim: x.cumsum(dim), a_dim),
    "softmax": Op(lambda x, w, dim: x.softmax(dim), a_dim, often=3),
    "log_softmax": Op(lambda x, w, dim: x.log_softmax(dim), a_dim),
    # creates
    "cat_full": Op(lambda x, w, d, n, value: torch.cat([x, torch.full([n if i == d else s for i, s in enumerate(x.shape)], value)], d), growing, often=2),
    "cat_zeros": Op(lambda x, w, d, n, value: torch.cat([x.new_zeros([n if i == d else s for i, s in enumerate(x.shape)]), x], d), growing),
    "add_arange": Op(lambda x, w: x + torch.arange(x.shape[-1], dtype=torch.float32) * 0.1, of_rank(1, 5)),
    "add_linspace": Op(lambda x, w: x + torch.linspace(-1, 1, x.shape[-1]), of_rank(1, 5)),
    "mul_eye": Op(lambda x, w: x * torch.eye(x.shape[-2], x.shape[-1]), of_rank(2, 4), often=0.5),
    "scalar_tensor": Op(lambda x, w: x * torch.scalar_tensor(0.7)),
    "return_full": Op(lambda x, w: [x * 1.5, torch.full((2, 3), 0.5)]),
    "causal_fill": Op(lambda x, w: x.masked_fill(torch.triu(torch.ones(x.shape[-2:], dtype=torch.bool), 1), float("-inf")).softmax(-1), of_rank(2, 4)),
}  # fmt: skip
