"""Ops with weights, windows or attention, and ops on integers and booleans."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.ops import MOST, OPS, Drawn, Op, Values, attr, of_rank, partner
from fuzz.program import Attributes, Shape

CONVS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d}


def convolved(r: Random, x: Tensor, v: Values) -> Drawn:
    if x.dim() not in CONVS or not x.numel():
        return None
    c = x.shape[1]
    groups = r.choice([g for g in (1, 1, 1, c, 2) if c % g == 0])
    k, dilation = r.choice([1, 1, 2, 3, 3, 5]), r.choice([1, 1, 1, 2])
    pad = r.choice([0, (k - 1) * dilation // 2, k // 2, "same"])
    stride = r.choice([1, 1, 2, 3])
    if pad == "same":
        stride = 1
    elif min(x.shape[2:]) + 2 * pad < (k - 1) * dilation + 1:
        return None
    out = groups * r.randint(1, max(1, 8 // groups))
    return (), {"out": out, "k": k, "stride": stride, "padding": pad, "dilation": dilation, "groups": groups, "bias": r.random() < 0.7}  # fmt: skip


def conv_weights(shapes: list[Shape], a: Attributes) -> dict[str, Shape]:
    s = shapes[0]
    return {"weight": (a["out"], s[1] // a["groups"], *[a["k"]] * (len(s) - 2))} | _bias(a, a["out"])


def _bias(a: Attributes, n: int) -> dict[str, Shape]:
    return {"bias": (n,)} if a["bias"] else {}


def conv(x: Tensor, w: dict[str, Tensor], out: int, k: int, bias: bool, **a: Any) -> Tensor:
    return CONVS[x.dim()](x, w["weight"], w.get("bias"), **a)


def transposed(r: Random, x: Tensor, v: Values) -> Drawn:
    if x.dim() not in TRANSPOSED or x.numel() * 4 > MOST or not x.numel():
        return None
    stride = r.choice([1, 2])
    groups = r.choice([g for g in (1, 1, 2, x.shape[1]) if x.shape[1] % g == 0])
    return (), {"out": r.randint(1, 4), "k": r.choice([2, 3]), "stride": stride, "padding": r.choice([0, 1]), "output_padding": r.randrange(stride), "groups": groups, "bias": r.random() < 0.5}  # fmt: skip


def transposed_weights(shapes: list[Shape], a: Attributes) -> dict[str, Shape]:
    s = shapes[0]
    return {"weight": (s[1], a["out"], *[a["k"]] * (len(s) - 2))} | _bias(a, a["out"] * a["groups"])


def pooled(r: Random, x: Tensor, v: Values) -> Drawn:
    if x.dim() not in (3, 4) or not x.numel() or min(x.shape[2:]) < 2:
        return None
    k = r.randint(2, min(3, *x.shape[2:]))
    return (), {"k": k, "stride": r.randint(1, 3), "padding": r.randint(0, k // 2), "ceil_mode": r.random() < 0.3}


def max_pool(x: Tensor, w: Any, k: int, **a: Any) -> Tensor:
    return (F.max_pool1d if x.dim() == 3 else F.max_pool2d)(x, k, **a)


def avg_pool(x: Tensor, w: Any, k: int, **a: Any) -> Tensor:
    return (F.avg_pool1d if x.dim() == 3 else F.avg_pool2d)(x, k, count_include_pad=a["padding"] != 1, **a)


def resized(r: Random, x: Tensor, v: Values) -> Drawn:
    if x.dim() != 4 or not x.numel() or x.numel() * 4 > MOST:
        return None
    mode = r.choice(["nearest", "nearest-exact", "bilinear", "bilinear", "bicubic", "area"])
    corners = {"align_corners": r.random() < 0.5} if mode in ("bilinear", "bicubic") else {}
    if r.random() < 0.5:
        factor = r.choice([2.0, 1.5, 0.5] if min(x.shape[2:]) > 1 else [2.0])
        return (), {"scale_factor": factor, "mode": mode, **corners}
    return (), {"size": [r.randint(1, 9), r.randint(1, 9)], "mode": mode, **corners}


def linear_weights(shapes: list[Shape], a: Attributes) -> dict[str, Shape]:
    return {"weight": (a["out"], shapes[0][-1])} | _bias(a, a["out"])


def last(names: str) -> Any:
    """Weights of the length of the last axis."""
    return lambda shapes, a: dict.fromkeys(names.split(), (shapes[0][-1],))


def channels(names: str) -> Any:
    return lambda shapes, a: dict.fromkeys(names.split(), (shapes[0][1],))


def gram_fits(x: Tensor, y: Tensor) -> bool:
    fits = x.dim() == y.dim() >= 2 and x.shape[:-2] == y.shape[:-2] and x.shape[-1] == y.shape[-1]
    return fits and x.dtype == y.dtype and x.numel() // max(1, x.shape[-1]) * y.shape[-2] <= MOST


def product_fits(x: Tensor, y: Tensor) -> bool:
    fits = (
        x.dim() >= 2 and y.dim() >= 2 and x.shape[-1] == y.shape[-2] and (x.shape[:-2] == y.shape[:-2] or y.dim() == 2)
    )
    return fits and x.dtype == y.dtype and x.numel() // max(1, x.shape[-1]) * y.shape[-1] <= MOST


def heads(r: Random, x: Tensor, v: Values) -> Drawn:
    if x.dim() != 3 or x.shape[-1] % 2 or not x.numel():
        return None
    return (), {
        "heads": r.choice([1, 2]),
        "mask": r.choice(["none", "causal", "float", "bool"]),
        "bias": r.random() < 0.5,
    }


def head_weights(shapes: list[Shape], a: Attributes) -> dict[str, Shape]:
    d = shapes[0][-1]
    return {"weight": (3 * d, d), "out_weight": (d, d)} | _bias(a, 3 * d)


def attention(x: Tensor, w: dict[str, Tensor], heads: int, mask: str, bias: bool) -> Tensor:
    b, t, d = x.shape
    q, k, v = F.linear(x, w["weight"], w.get("bias")).view(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)
    ones = torch.ones(t, t, dtype=torch.bool).tril()
    given = {"float": torch.zeros(t, t).masked_fill(~ones, float("-inf")), "bool": ones}.get(mask)
    made = F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=mask == "causal")
    return F.linear(made.transpose(1, 2).reshape(b, t, d), w["out_weight"])


def cell_weights(gates: int) -> Any:
    return lambda shapes, a: {
        "weight": (gates * 4, shapes[0][-1]), "weight_hh": (gates * 4, 4), "bias": (gates * 4,), "bias_hh": (gates * 4,),
    }  # fmt: skip


def lstm_cell(x: Tensor, w: dict[str, Tensor]) -> Any:
    h = c = torch.zeros(x.shape[0], 4)
    for _ in range(2):
        h, c = torch.lstm_cell(x, (h, c), w["weight"], w["weight_hh"], w["bias"], w["bias_hh"])
    return [h, c]


def gru_cell(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    h = torch.zeros(x.shape[0], 4)
    return torch.gru_cell(x, h, w["weight"], w["weight_hh"], w["bias"], w["bias_hh"])


def recurrent(kind: str) -> Any:
    """A whole layer, through torch's own op."""

    def run(x: Tensor, w: dict[str, Tensor]) -> Any:
        flat, h = [w["weight"], w["weight_hh"], w["bias"], w["bias_hh"]], x.new_zeros(1, x.shape[0], 4)
        if kind == "lstm":
            return torch.lstm(x, [h, h], flat, True, 1, 0.0, False, False, True)[0]
        return torch.gru(x, h, flat, True, 1, 0.0, False, False, True)[0]

    return run


def grid_sampled(x: Tensor, w: Any, mode: str, padding: str, corners: bool) -> Tensor:
    theta = torch.tensor([[[0.9, 0.1, 0.05], [-0.1, 0.8, 0.0]]]).expand(x.shape[0], 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=corners)
    return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)


def group_count(r: Random, x: Tensor, v: Values) -> Drawn:
    return ((), {"groups": r.choice([g for g in (1, 2, x.shape[1]) if x.shape[1] % g == 0])}) if x.numel() > 2 * x.shape[0] * x.shape[1] else None  # fmt: skip


def spread(r: Random, x: Tensor, v: Values) -> Drawn:
    return ((), {}) if x.dim() in (3, 4) and x.shape[2:].numel() > 2 else None


OPS |= {
    "conv": Op(conv, convolved, conv_weights, often=14),
    "conv_transpose": Op(lambda x, w, out, k, bias, **a: TRANSPOSED[x.dim()](x, w["weight"], w.get("bias"), **a), transposed, transposed_weights, often=2),
    "linear": Op(lambda x, w, out, bias: F.linear(x, w["weight"], w.get("bias")), of_rank(1, 5, attr(out=[1, 3, 4, 8], bias=[True, True, False])), linear_weights, often=10),
    "addmm": Op(lambda x, w, out, bias: torch.addmm(w["bias"], x, w["weight"].t(), beta=0.5, alpha=2.0), of_rank(2, 2, attr(out=[3, 8], bias=[True])), linear_weights),
    "einsum": Op(lambda x, w, out, bias: torch.einsum("...i,oi->...o", x, w["weight"]), of_rank(2, 4, attr(out=[3, 8], bias=[False])), linear_weights),
    "batch_norm": Op(lambda x, w: F.batch_norm(x, w["mean"], w["var"], w["gain"], w["bias"]), of_rank(2, 5), channels("mean var gain bias"), often=4),
    "group_norm": Op(lambda x, w, groups: F.group_norm(x, groups, w["gain"], w["bias"]), of_rank(3, 4, group_count), channels("gain bias"), often=2),
    "instance_norm": Op(lambda x, w: F.instance_norm(x), spread),
    "layer_norm": Op(lambda x, w: F.layer_norm(x, x.shape[-1:], w["gain"], w["bias"]), lambda r, x, v: ((), {}) if x.dim() and x.shape[-1] >= 3 else None, last("gain bias"), often=3),
    "rms_norm": Op(lambda x, w: F.rms_norm(x, x.shape[-1:], w["gain"]), of_rank(1, 5), last("gain")),
    "local_response_norm": Op(lambda x, w: F.local_response_norm(x, 2), of_rank(3, 4), often=0.5),
    "prelu": Op(lambda x, w: F.prelu(x, w["gain"]), of_rank(2, 5), channels("gain")),
    "glu": Op(lambda x, w: F.glu(x, -1), lambda r, x, v: ((), {}) if x.dim() and x.shape[-1] % 2 == 0 and x.numel() else None),
    "parameter": Op(lambda x, w: x * w["gain"] + w["bias"], of_rank(1, 5), last("gain bias"), often=2),
    "class_token": Op(lambda x, w: torch.cat([w["bias"].expand(x.shape[0], 1, -1), x], 1), of_rank(3, 3), last("bias"), often=2),
    "buffer_state": Op(lambda x, w: x + w["state"].mul_(0.5).add_(x.mean()), of_rank(1, 5), lambda s, a: {"state": (1,)}, often=0.15),
    "max_pool": Op(max_pool, pooled, often=4),
    "avg_pool": Op(avg_pool, pooled, often=4),
    "adaptive_avg": Op(lambda x, w, n: F.adaptive_avg_pool2d(x, n), of_rank(4, 4, attr(n=[1, 2, 3])), often=2),
    "adaptive_max": Op(lambda x, w, n: F.adaptive_max_pool2d(x, n), of_rank(4, 4, attr(n=[1, 2]))),
    "resize": Op(lambda x, w, **a: F.interpolate(x, **a), resized, often=3),
    "grid_sample": Op(grid_sampled, of_rank(4, 4, attr(mode=["bilinear", "nearest"], padding=["zeros", "border"], corners=[True, False]))),
    "attention": Op(attention, heads, head_weights, often=5),
    "gram": Op(lambda x, y, w: (x @ y.transpose(-1, -2)) * x.shape[-1] ** -0.5, partner(gram_fits), often=3),
    "matmul": Op(lambda x, y, w: torch.matmul(x, y), partner(product_fits), often=3),
    "cosine": Op(lambda x, y, w: F.cosine_similarity(x, y, dim=-1), partner(lambda x, y: x.dim() > 0 and x.shape == y.shape and x.dtype == y.dtype), often=0.5),
    "lstm_cell": Op(lstm_cell, of_rank(2, 2), cell_weights(4), often=2),
    "gru_cell": Op(gru_cell, of_rank(2, 2), cell_weights(3), often=2),
    "lstm": Op(recurrent("lstm"), of_rank(3, 3), cell_weights(4)),
    "gru": Op(recurrent("gru"), of_rank(3, 3), cell_weights(3)),
    # integers and booleans
    "embedding": Op(lambda x, w: F.embedding(x.abs() % 5, w["weight"]), lambda r, x, v: ((), {}) if x.dtype in (torch.int64, torch.int32) and x.numel() * 4 <= MOST and x.dim() < 5 else None, lambda s, a: {"weight": (5, 4)}, often=6, reads="int"),
    "one_hot": Op(lambda x, w: F.one_hot(x.long().abs() % 4, 4).float(), lambda r, x, v: ((), {}) if x.dim() < 5 and x.numel() * 4 <= MOST else None, reads="int"),
    "int_to_float": Op(lambda x, w: x.float() * 0.1, often=4, reads="int"),
    "int_add": Op(lambda x, w: x + 3, reads="int"),
    "int_mul": Op(lambda x, w: x * 2, reads="int"),
    "int_floor": Op(lambda x, w: x // 2, reads="int"),
    "int_mod": Op(lambda x, w: x % 3, reads="int"),
    "int_compare": Op(lambda x, w: x > 1, reads="int"),
    "int_true_div": Op(lambda x, w: x / 4, reads="int"),
    "bool_not": Op(lambda x, w: ~x, reads="bool"),
    "bool_float": Op(lambda x, w: x.float(), often=4, reads="bool"),
    "bool_where": Op(lambda x, w: torch.where(x, 1.5, -0.5), often=2, reads="bool"),
    "bool_any": Op(lambda x, w: x.any(), reads="bool"),
    "bool_sum": Op(lambda x, w: x.sum(-1), of_rank(1, 5), reads="bool"),
    "bool_and": Op(lambda x, y, w: x & ~y, partner(lambda x, y: y.dtype == torch.bool and x.shape == y.shape), reads="bool"),
    "mask_by": Op(lambda x, y, w: y.masked_fill(x, -2.0), partner(lambda x, y: y.dtype.is_floating_point and x.shape == y.shape), often=3, reads="bool"),
    "select_by": Op(lambda x, y, w: torch.where(x, y, torch.zeros_like(y)), partner(lambda x, y: y.dtype.is_floating_point and x.shape == y.shape), often=3, reads="bool"),
    "to_int": Op(lambda x, w: (x * 4).to(torch.int64), often=0.7),
    "to_int32": Op(lambda x, w: (x * 4).int(), often=0.5),
    "to_uint8": Op(lambda x, w: (x.abs() * 4).clamp(max=200).to(torch.uint8).float(), often=0.3),
    "take_by_int": Op(lambda x, y, w: y[x.abs() % y.shape[0]], partner(lambda x, y: y.dtype.is_floating_point and y.dim() > 0 and y.numel() > 0 and x.dtype == torch.int64 and x.dim() == 1 and y.numel() // y.shape[0] * x.numel() <= MOST), often=3, reads="int"),
    "gather_by_argmax": Op(lambda x, w: x.gather(-1, x.argmax(-1, keepdim=True)), of_rank(2, 4)),
}  # fmt: skip
