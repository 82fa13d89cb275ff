"""The ops of random programs: how each is drawn and run. Several tables, one for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.program import Attributes, Shape

MOST, LONGEST, DEEPEST = 1024, 24, 5
Values = dict[str, Tensor]
Drawn = tuple[tuple[str, ...], Attributes] | None  # further operands and attributes; None: it does not fit
NOTHING: Drawn = ((), {})


@dataclass(frozen=True)
class Op:
    """`draw(random, first, values)`; `run(*operands, w=weights, **attributes)`."""

    run: Callable[..., Any]
    draw: Callable[[Random, Tensor, Values], Drawn] = lambda r, x, v: NOTHING
    weights: Callable[[list[Shape], Attributes], dict[str, Shape]] | None = None
    often: float = 1
    reads: str = "float"  # float, int, bool, any


OPS: dict[str, Op] = {}


def kind_of(x: Tensor) -> str:
    return "float" if x.dtype.is_floating_point else "bool" if x.dtype == torch.bool else "int"


def attr(**choices: list[Any]) -> Callable[[Random, Tensor, Values], Drawn]:
    """Each attribute is one of its choices."""
    return lambda r, x, v: ((), {k: r.choice(c) for k, c in choices.items()})


def of_rank(low: int, high: int, draw: Callable[[Random, Tensor, Values], Drawn] | None = None) -> Any:
    return lambda r, x, v: (draw(r, x, v) if draw else NOTHING) if low <= x.dim() <= high and x.numel() else None


def a_dim(r: Random, x: Tensor, v: Values) -> Drawn:
    return ((), {"dim": r.randrange(-x.dim(), x.dim())}) if x.dim() and x.numel() else None


def dim_and_keep(r: Random, x: Tensor, v: Values) -> Drawn:
    return ((), {"dim": r.randrange(-x.dim(), x.dim()), "keepdim": r.random() < 0.5}) if x.dim() and x.numel() else None


def dims_and_keep(r: Random, x: Tensor, v: Values) -> Drawn:
    if not x.dim() or not x.numel():
        return None
    dims = r.sample(range(x.dim()), r.randint(1, x.dim()))
    return (), {"dim": [d - x.dim() * (r.random() < 0.3) for d in dims], "keepdim": r.random() < 0.5}


def partner(fits: Callable[[Tensor, Tensor], bool]) -> Callable[[Random, Tensor, Values], Drawn]:
    """A second operand that fits the first."""

    def draw(r: Random, x: Tensor, v: Values) -> Drawn:
        found = [n for n, y in v.items() if fits(x, y)]
        return ((r.choice(found),), {}) if found else None

    return draw


def broadcasts(x: Tensor, y: Tensor) -> bool:
    if x.dtype != y.dtype:
        return False
    try:
        return math.prod(torch.broadcast_shapes(x.shape, y.shape)) <= MOST
    except RuntimeError:
        return False


def same(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape


# ---- elementwise ----

UNARY: dict[str, Callable[[Tensor], Any]] = {
    "relu": torch.relu, "relu6": F.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "elu": F.elu, "selu": F.selu, "celu": F.celu, "softplus": F.softplus,
    "softsign": F.softsign, "mish": F.mish, "abs": torch.abs, "neg": torch.neg, "square": torch.square,
    "sin": torch.sin, "cos": torch.cos, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "sign": torch.sign, "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "exp": lambda x: torch.exp(x.clamp(max=3.0)), "log": lambda x: torch.log(x.abs() + 0.5),
    "sqrt": lambda x: torch.sqrt(x.abs()), "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.1),
    "reciprocal": lambda x: torch.reciprocal(x.abs() + 0.5), "log1p": lambda x: torch.log1p(x.abs()),
    "expm1": lambda x: torch.expm1(x.clamp(max=2.0)), "nan_to_num": torch.nan_to_num, "frac": torch.frac,
    "dropout": lambda x: F.dropout(x, training=False), "atan": torch.atan, "positive": torch.positive,
    "rsub": lambda x: 1.0 - x, "recip_div": lambda x: 2.0 / (x.abs() + 1.0), "clone": torch.clone,
    "contiguous": lambda x: x.contiguous(), "detach": torch.detach, "numpy_T": lambda x: x.mT if x.dim() > 1 else x,
    "flat": lambda x: x.flatten(), "where_sign": lambda x: torch.where(x > 0, x, x * 0.1),
    "where_zero": lambda x: torch.where(x > 0.3, x, 0.0), "masked_self": lambda x: x.masked_fill(x < 0, -1e4),
    "half_round_trip": lambda x: x.half().float(), "double_round_trip": lambda x: x.double().mul(2).float(),
    "bf16_round_trip": lambda x: x.bfloat16().float(),
    "inplace_add": lambda x: x.clone().add_(1.0), "inplace_relu": lambda x: F.relu(x.clone(), inplace=True),
    "inplace_view": lambda x: _written_through_a_view(x), "inplace_mul": lambda x: x.clone().mul_(0.5).clamp_(-1, 1),
    "setitem_scalar": lambda x: _set(x, 0.5), "setitem_slice": lambda x: _set(x, x[..., :1] * 2 if x.dim() else x),
    "zero_out": lambda x: x * 0.0, "constant_ones": torch.ones_like, "nothing": lambda x: x,
    "empty_fill": lambda x: torch.empty_like(x).fill_(0.25) + x, "clamp_low": lambda x: x.clamp(min=0.1),
    "clamp_high": lambda x: x.clamp(max=0.5), "clamp_tensor": lambda x: torch.clamp(x, torch.tensor(-0.5), torch.tensor(0.9)),
    "shape_factor": lambda x: x * (x.shape[-1] if x.dim() else 3), "sum_all": torch.sum, "mean_all": torch.mean,
    "self_add": lambda x: x + x, "self_mul": lambda x: x * x, "self_sub": lambda x: x - x, "self_max": lambda x: torch.maximum(x, x),
    "self_cat": lambda x: torch.cat([x, x]) if x.dim() and x.numel() * 2 <= MOST else x + 1,
    "logical_to_float": lambda x: (x > 0).float(), "to_bool_any": lambda x: (x > 0).any(),
    "normalize": lambda x: F.normalize(x, dim=-1) if x.dim() else x,
}  # fmt: skip


def _written_through_a_view(x: Tensor) -> Tensor:
    base = x.clone()
    base.view(-1)[: max(1, base.numel() // 2)].mul_(-1.0)
    return base


def _set(x: Tensor, value: Any) -> Tensor:
    base = x.clone()
    base[..., :1] = value
    return base


for _name, _run in UNARY.items():
    OPS[_name] = Op(
        lambda x, w, _run=_run: _run(x), often=3 if _name in ("relu", "sigmoid", "gelu", "silu", "tanh") else 0.5
    )

OPS |= {
    "leaky_relu": Op(lambda x, w, slope: F.leaky_relu(x, slope), attr(slope=[0.01, 0.2, -0.5, 1.5])),
    "clamp": Op(lambda x, w, low, high: x.clamp(low, high), attr(low=[-1.0, 0.0, 0.25, -0.5], high=[1.0, 6.0, 0.5])),
    "threshold": Op(lambda x, w, at, value: F.threshold(x, at, value), attr(at=[0.0, 0.3], value=[0.0, -1.0, 20.0])),
    "pow": Op(lambda x, w, by: torch.pow(x.abs() + 0.1, by), attr(by=[0.5, 2, 2.0, 3, -1, 1.5, 0])),
    "scale": Op(lambda x, w, by: x * by, attr(by=[0.5, 4.0, -1.0, 0.1, 12.0, 3, 1e-3, 0.0]), often=2),
    "shift": Op(lambda x, w, by: x + by, attr(by=[0.5, 4.0, -1.0, 100.0, 3, 0.0]), often=2),
    "div": Op(lambda x, w, by: x / by, attr(by=[0.5, 4.0, -3.0, 3]), often=1),
    "div_mode": Op(lambda x, w, by, mode: torch.div(x, by, rounding_mode=mode), attr(by=[0.5, 2.0], mode=["floor", "trunc"])),
    "remainder": Op(lambda x, w, by: torch.remainder(x, by), attr(by=[1.0, 0.7])),
    "fmod": Op(lambda x, w, by: torch.fmod(x, by), attr(by=[1.0, 0.7])),
    "add": Op(lambda x, y, w: x + y, partner(broadcasts), often=6, reads="any"),
    "add_alpha": Op(lambda x, y, w: torch.add(x, y, alpha=2.5), partner(broadcasts)),
    "sub": Op(lambda x, y, w: torch.subtract(x, y), partner(broadcasts), often=2),
    "mul": Op(lambda x, y, w: x * y, partner(broadcasts), often=4, reads="any"),
    "divide": Op(lambda x, y, w: x / (y.abs() + 0.5), partner(broadcasts)),
    "maximum": Op(lambda x, y, w: torch.maximum(x, y), partner(broadcasts), reads="any"),
    "minimum": Op(lambda x, y, w: torch.minimum(x, y), partner(broadcasts)),
    "fmax": Op(lambda x, y, w: torch.fmax(x, y), partner(broadcasts), often=0.5),
    "addcmul": Op(lambda x, y, w: torch.addcmul(x, y, y, value=0.5), partner(same)),
    "lerp": Op(lambda x, y, w: torch.lerp(x, y, 0.3), partner(same)),
    "atan2": Op(lambda x, y, w: torch.atan2(x, y.abs() + 0.2), partner(same), often=0.5),
    "hypot": Op(lambda x, y, w: torch.hypot(x, y), partner(same), often=0.5),
    "where_less": Op(lambda x, y, w: torch.where(x < y, x, y * 2), partner(broadcasts)),
    "setitem_tensor": Op(lambda x, y, w: _copied(x, y), partner(same)),
    "written_in_place": Op(lambda x, w: x.add_(0.5), often=0.5),
    "isclose": Op(lambda x, y, w: torch.isclose(x, y, atol=0.2), partner(same), often=0.5),
    "compare": Op(lambda x, y, w, how: getattr(torch, how)(x, y), lambda r, x, v: _with(partner(broadcasts)(r, x, v), how=r.choice(["gt", "le", "eq", "ne"])), reads="any"),
}  # fmt: skip


def _with(drawn: Drawn, **more: Any) -> Drawn:
    return None if drawn is None else (drawn[0], {**drawn[1], **more})


def _copied(x: Tensor, y: Tensor) -> Tensor:
    base = x.clone()
    base[..., 1:] = y[..., :-1] if x.dim() else y
    return base
