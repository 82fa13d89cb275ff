"""Other spellings that users write: in-place writes, mixed dtypes, keyword forms, rarer functions, losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.ops import MOST, OPS, Op, a_dim, attr, broadcasts, dim_and_keep, of_rank, partner, same
from fuzz.ops_shapes import indices, pieces

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "exp2": lambda x: torch.exp2(x.clamp(max=3.0)), "log2": lambda x: torch.log2(x.abs() + 0.5),
    "log10": lambda x: torch.log10(x.abs() + 0.5), "erfc": torch.erfc, "sinh": lambda x: torch.sinh(x.clamp(-2, 2)),
    "cosh": lambda x: torch.cosh(x.clamp(-2, 2)), "asinh": torch.asinh, "asin": lambda x: torch.asin(x.tanh()),
    "acos": lambda x: torch.acos(x.tanh()), "atanh": lambda x: torch.atanh(x.tanh() * 0.9), "tan": lambda x: torch.tan(x.tanh()),
    "sinc": torch.sinc, "logit": lambda x: torch.logit(x.sigmoid(), eps=1e-3), "deg2rad": torch.deg2rad,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0), "softmin": lambda x: F.softmin(x, -1) if x.dim() else x,
    "rrelu": lambda x: F.rrelu(x, training=False), "isnan": torch.isnan, "signbit": torch.signbit,
    "isfinite": torch.isfinite, "logical_not": torch.logical_not, "ravel": torch.ravel, "atleast_3d": torch.atleast_3d,
    "square_root_sum": lambda x: x.pow(2).sum().sqrt(), "std_mean": torch.std_mean, "var_mean": lambda x: torch.var_mean(x, correction=0),
    "aminmax": torch.aminmax, "count": lambda x: torch.count_nonzero(x > 0), "new_full": lambda x: x.new_full((2, 2), 0.3) * x.mean(),
    "iadd_scalar": lambda x: _iadd(x), "relu_": lambda x: x.clone().relu_(), "sigmoid_": lambda x: x.clone().sigmoid_(),
    "masked_write": lambda x: _masked_write(x), "masked_fill_": lambda x: x.clone().masked_fill_(x > 0.5, 0.1),
    "copy_": lambda x: torch.zeros_like(x).copy_(x * 2), "zero_": lambda x: x.clone().zero_() + x,
    "mul_bool": lambda x: x * (x > 0), "add_int": lambda x: x + torch.ones(x.shape, dtype=torch.int64),
    "mul_double": lambda x: (x * torch.tensor(0.5, dtype=torch.float64)), "as_type": lambda x: (x * 3).int().type_as(x),
    "mse": lambda x: F.mse_loss(x, torch.zeros_like(x)), "l1": lambda x: F.l1_loss(x, torch.ones_like(x), reduction="none"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), "kl": lambda x: F.kl_div(x, x.sigmoid(), reduction="sum"),
    "item_factor": lambda x: x * float(torch.tensor(0.25)), "python_sum": lambda x: sum([x, x * 0.5, 1.0]),
    "no_grad": lambda x: _no_grad(x), "real_fft": lambda x: torch.fft.rfft(x).abs() if x.dim() and 1 < x.shape[-1] <= 16 else x,
}  # fmt: skip


def _iadd(x: Tensor) -> Tensor:
    x = x.clone()
    x += 0.5
    x *= 2
    return x


def _masked_write(x: Tensor) -> Tensor:
    base = x.clone()
    base[x < -0.2] = 0.0
    return base


def _no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 0.5 + 1


def _written_rows(x: Tensor, d: int, index: list[int]) -> Tensor:
    base = x.clone().movedim(d, 0)
    base[torch.tensor(sorted(set(index)))] = 0.25
    return base.movedim(0, d)


def _scatter_added(x: Tensor, d: int, index: list[int]) -> Tensor:
    where = torch.tensor(index).view([-1 if i == d else 1 for i in range(x.dim())])
    where = where.expand([len(index) if i == d else n for i, n in enumerate(x.shape)])
    return x.scatter_add(d, where, torch.ones(where.shape))


def _mixed(x: Tensor, y: Tensor) -> bool:
    try:
        return x.dtype != y.dtype and torch.broadcast_shapes(x.shape, y.shape).numel() <= MOST
    except RuntimeError:
        return False


def _joined(x: Tensor, y: Tensor, w: Any, how: str) -> Tensor:
    return getattr(torch, how)((x, y))


def _matrices(x: Tensor, y: Tensor) -> bool:
    return x.dim() == y.dim() == 2 and x.shape[1] == y.shape[1] and x.dtype == y.dtype


for _name, _run in FUNCTIONS.items():
    OPS[_name] = Op(lambda x, w, _run=_run: _run(x), often=0.4)

OPS |= {
    "mixed_add": Op(lambda x, y, w: x + y, partner(_mixed), reads="any", often=3),
    "mixed_mul": Op(lambda x, y, w: x * y, partner(_mixed), reads="any", often=2),
    "mixed_where": Op(lambda x, y, w: torch.where(x > 0, x, y), partner(_mixed), reads="any"),
    "logaddexp": Op(lambda x, y, w: torch.logaddexp(x, y), partner(broadcasts), often=0.5),
    "copysign": Op(lambda x, y, w: torch.copysign(x, y), partner(broadcasts), often=0.5),
    "addcdiv": Op(lambda x, y, w: torch.addcdiv(x, y, y.abs() + 1, value=0.5), partner(same), often=0.5),
    "logical_or": Op(lambda x, y, w: torch.logical_or(x > 0, y > 0), partner(broadcasts), often=0.5),
    "iadd": Op(lambda x, y, w: x.clone().add_(y, alpha=2), partner(same)),
    "stacks": Op(_joined, lambda r, x, v: _how(partner(same)(r, x, v), r.choice(["hstack", "vstack", "dstack", "column_stack"])) if 1 <= x.dim() <= 4 and x.numel() * 2 <= MOST else None),
    "cdist": Op(lambda x, y, w: torch.cdist(x, y), partner(_matrices), often=0.5),
    "outer": Op(lambda x, y, w: torch.outer(x.flatten()[:8], y.flatten()[:8]), partner(lambda x, y: x.dtype == y.dtype), often=0.5),
    "tensordot": Op(lambda x, y, w: torch.tensordot(x, y, dims=([1], [1])), partner(_matrices), often=0.5),
    "pairwise": Op(lambda x, y, w: F.pairwise_distance(x, y), partner(lambda x, y: same(x, y) and x.dim() == 2), often=0.5),
    "norm_one": Op(lambda x, w, p, dim: F.normalize(x, p=p, dim=dim), lambda r, x, v: _with_order(a_dim(r, x, v), r.choice([1.0, 2.0, 3.0]))),
    "std_unbiased": Op(lambda x, w, dim, keepdim: x.std(dim, keepdim=keepdim) if x.shape[dim] > 1 else x, dim_and_keep),
    "nanmean": Op(lambda x, w, **a: x.nanmean(**a), dim_and_keep, often=0.5),
    "all": Op(lambda x, w, **a: (x > -0.5).all(**a), dim_and_keep, often=0.5),
    "min_dim": Op(lambda x, w, **a: x.min(**a), dim_and_keep, often=0.5),
    "argsort": Op(lambda x, w, dim: x.argsort(dim, descending=True), a_dim, often=0.3),
    "cummax": Op(lambda x, w, dim: x.cummax(dim)[0], a_dim, often=0.3),
    "cumprod": Op(lambda x, w, dim: x.tanh().cumprod(dim), a_dim, often=0.3),
    "diff": Op(lambda x, w, dim: x.diff(dim=dim) if x.shape[dim] > 1 else x, a_dim, often=0.5),
    "unflatten": Op(lambda x, w, dim: x.unflatten(dim, (-1, 1)), a_dim, often=0.5),
    "swapaxes": Op(lambda x, w, dim: x.swapaxes(0, dim), a_dim, often=0.5),
    "tile": Op(lambda x, w: x.tile((2,)), lambda r, x, v: ((), {}) if x.dim() and x.numel() * 2 <= MOST else None, often=0.5),
    "written_rows": Op(lambda x, w, **a: _written_rows(x, **a), indices),
    "scatter_add": Op(lambda x, w, **a: _scatter_added(x, **a), indices, often=0.5),
    "take_along": Op(lambda x, w, dim: torch.take_along_dim(x, x.argsort(dim), dim), a_dim, often=0.3),
    "split_and_swap": Op(lambda x, w, d, n: torch.cat(x.chunk(2, d)[::-1], d), pieces),
    "returned_indices": Op(lambda x, w: F.max_pool2d(x, 2, return_indices=True), of_rank(4, 4), often=0.4),
    "im2col": Op(lambda x, w: F.unfold(x, 2), lambda r, x, v: ((), {}) if x.dim() == 4 and min(x.shape[2:]) > 1 and x.numel() * 4 <= MOST else None, often=0.5),
    "lp_pool": Op(lambda x, w: F.lp_pool2d(x.abs() + 0.1, 2.0, 2), of_rank(4, 4), often=0.3),
    "bucketize": Op(lambda x, w: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), often=0.3),
    "int_bits": Op(lambda x, w, how: getattr(torch, how)(x, 3), attr(how=["bitwise_and", "bitwise_or", "bitwise_xor"]), reads="int", often=0.5),
    "int_neg": Op(lambda x, w: -x, reads="int", often=0.5),
    "int_float_scale": Op(lambda x, w: x * 0.5, reads="int"),
    "int_cumsum": Op(lambda x, w: x.cumsum(-1), of_rank(1, 4), reads="int", often=0.5),
    "int_max": Op(lambda x, w: x.max(), reads="int", often=0.5),
    "int_cat_float": Op(lambda x, w: torch.cat([x, x.float() * 0.5]), of_rank(1, 3), reads="int", often=0.5),
}  # fmt: skip


def _how(drawn: Any, how: str) -> Any:
    return None if drawn is None else (drawn[0], {"how": how})


def _with_order(drawn: Any, p: float) -> Any:
    return None if drawn is None else (drawn[0], {**drawn[1], "p": p})
