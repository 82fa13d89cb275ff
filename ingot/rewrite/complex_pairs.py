"""abs(stft(x, window)) -> sqrt(r * r + i * i), with r, i = conv1d(x, windowed cosines), conv1d(x, windowed sines)

Complex values become pairs of floats: transforms of fixed length are products with constant matrices, products and
moves are written out. Backends have no complex numbers, and the runtime has no transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import add_constant, calls, constant_of, replace, source_of, value_name, value_of
from ingot.rewrite.decomposition import canonicalize_again, has_static_shapes
from ingot.rewrite.rule import in_float

aten = torch.ops.aten
REASON = "part of a spectrum: it needs float"
Pair = tuple[Node, Node]


@dataclass(frozen=True)
class ComplexPairs:
    name: str = "complex-as-pairs"
    required: bool = True  # no kernel of the runtime takes complex numbers

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in calls(module):
            new = _rewrite(node)
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                new.meta["ingot_value"] = value_name(node)
                replace(node, new)
        for node in module.graph.nodes:
            node.meta.pop("ingot_pair", None)
        if places:
            module.graph.eliminate_dead_code()
            canonicalize_again(module)
        return places


def _rewrite(node: Node) -> Node | None:
    """Ops with a real result that read a complex value."""
    sink = _SINKS.get(_name(node))
    source = node.args[0] if node.args else None
    if sink is None or not _is_complex(source) or _is_complex(node):
        return None
    pair = _pair(source)
    return None if pair is None else sink(node, *pair)


def _name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""


def _is_complex(value: Any) -> bool:
    val = value_of(value) if isinstance(value, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype == torch.complex64


def _op(at: Node, op: Any, *args: Any) -> Node:
    return in_float(at, REASON, op, *args)


# ---- real results


def _magnitude(node: Node, r: Node, i: Node) -> Node:
    squares = [_op(node, aten.mul.Tensor, x, x) for x in (r, i)]
    return _op(node, aten.sqrt.default, _op(node, aten.add.Tensor, *squares))


def _stacked(node: Node, r: Node, i: Node) -> Node:
    shape = [*value_of(r).shape, 1]
    return _op(node, aten.cat.default, [_op(node, aten.reshape.default, x, shape) for x in (r, i)], -1)


def _inverse_real_transform(node: Node, r: Node, i: Node) -> Node | None:
    """irfft: a sum of cosines and sines, each frequency counted twice but the first and the middle one."""
    if _name(node) == "_fft_c2r":
        dims, norm, size = node.args[1:4]
        scale = {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}.get(norm)  # type: ignore[operator,arg-type,call-overload]
        if list(dims) not in ([-1], [value_of(r).dim() - 1]) or scale is None:  # type: ignore[arg-type]
            return None
    else:
        return None
    bins, times = torch.arange(value_of(r).shape[-1]), torch.arange(size)  # type: ignore[call-overload]
    angles = 2 * math.pi * times[:, None].double() * bins / size  # type: ignore[operator]
    weight = torch.where((bins == 0) | (2 * bins == size), 1.0, 2.0).double() * scale
    parts = [(r, angles.cos() * weight), (i, -angles.sin() * weight)]
    sums = [_op(node, aten.linear.default, x, _constant(node, m, "inverse_dft")) for x, m in parts]
    return _op(node, aten.add.Tensor, *sums)


_SINKS: dict[str, Callable[[Node, Node, Node], Node | None]] = {
    "abs": _magnitude,
    "view_as_real": _stacked,
    "real": lambda node, r, i: r,
    "imag": lambda node, r, i: i,
    "_fft_c2r": _inverse_real_transform,
}


# ---- pairs for complex values


def _pair(node: Any) -> Pair | None:
    if "ingot_pair" not in node.meta:
        node.meta["ingot_pair"] = _made(node)
    return node.meta["ingot_pair"]


def _made(node: Node) -> Pair | None:
    constant = constant_of(node)
    if constant is not None:
        at = node.next
        return _constant(at, constant.real, node.name), _constant(at, constant.imag, node.name)
    maker = _MAKERS.get(_name(node))
    if node.op != "call_function" or not has_static_shapes(node):
        return None
    return maker(node) if maker is not None else _moved(node)


def _constant(at: Node, tensor: torch.Tensor, name: str) -> Node:
    return add_constant(at.graph.owning_module, tensor.float().contiguous(), name, at)  # type: ignore[arg-type]


def _moved(node: Node) -> Pair | None:
    """reshape, permute, slice, select …: both parts alike."""
    sources = node.all_input_nodes
    if len(sources) != 1 or not _is_complex(sources[0]) or effect_of(node).kind is not Kind.MOVES:
        return None
    pair = _pair(sources[0])
    if pair is None:
        return None
    r, i = (_op(node, node.target, *torch.fx.map_arg(node.args, {sources[0]: x}.get)) for x in pair)
    return r, i


def _short_time_transform(node: Node) -> Pair | None:
    """A convolution with the windowed basis of the transform, a step for each frame."""
    given = dict(zip([a.name for a in node.target._schema.arguments], node.args, strict=False)) | dict(node.kwargs)  # type: ignore[union-attr]
    x, size = given["self"], given["n_fft"]
    window = _window(given, size)
    if window is None or given.get("center", False) or value_of(x).dtype != torch.float32:
        return None
    bins = size // 2 + 1 if given.get("onesided") in (None, True) else size
    scale = 1 / math.sqrt(size) if given.get("normalized") else 1.0
    basis = [m * window * scale for m in _basis(bins, size)]
    step = given.get("hop_length") or size // 4
    *lead, samples = value_of(x).shape
    flat = _op(node, aten.reshape.default, x, [math.prod(lead), 1, samples])
    shape = list(value_of(node).shape)
    r, i = (_frames(node, flat, kernel, step, shape) for kernel in basis)
    return r, i


def _window(given: dict[str, Any], size: int) -> torch.Tensor | None:
    width = given.get("win_length") or size
    node = given.get("window")
    window = constant_of(node) if node is not None else torch.ones(width)
    if window is None:
        return None
    start = (size - width) // 2
    return torch.nn.functional.pad(window.double(), (start, size - width - start))


def _basis(bins: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = 2 * math.pi * torch.arange(bins, dtype=torch.float64)[:, None] * torch.arange(size) / size
    return angles.cos(), -angles.sin()


def _frames(node: Node, x: Node, kernel: torch.Tensor, step: int, shape: list[int]) -> Node:
    weight = _constant(node, kernel[:, None, :], f"{node.name}_basis")
    made = _op(node, aten.conv1d.default, x, weight, None, [step])
    return made if list(value_of(made).shape) == shape else _op(node, aten.reshape.default, made, shape)


def _real_transform(node: Node) -> Pair | None:
    """rfft along the last axis: two linears."""
    x, dims, norm, *rest = node.args
    size = value_of(x).shape[-1]  # type: ignore[arg-type]
    scale = {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}.get(norm)  # type: ignore[arg-type]
    if list(dims) not in ([-1], [value_of(x).dim() - 1]) or scale is None or value_of(x).dtype != torch.float32:  # type: ignore[arg-type]
        return None
    bins = size // 2 + 1 if not rest or rest[0] else size
    cosines, sines = (m * scale for m in _basis(bins, size))
    r, i = (_op(node, aten.linear.default, x, _constant(node, m, "dft")) for m in (cosines, sines))
    return r, i


def _from_real(node: Node) -> Pair | None:
    """view_as_complex: the last axis has both parts."""
    x: Any = node.args[0]
    shape = list(value_of(node).shape)
    parts = [_op(node, aten.slice.Tensor, x, value_of(x).dim() - 1, k, k + 1) for k in (0, 1)]
    r, i = (_op(node, aten.reshape.default, p, shape) for p in parts)
    return r, i


def _both_parts(node: Node) -> list[tuple[Any, Any]] | None:
    """Real and imaginary part of each operand; None for that of a real one."""
    found = [_pair(a) if _is_complex(a) else (a, None) for a in node.args[:2]]
    return None if any(f is None for f in found) or node.kwargs else found  # type: ignore[return-value]


def _product(node: Node) -> Pair | None:
    found = _both_parts(node)
    if found is None:
        return None
    (a, b), (c, d) = found if found[1][1] is not None else found[::-1]
    if b is None:
        return _op(node, aten.mul.Tensor, c, a), _op(node, aten.mul.Tensor, d, a)
    ac, bd, ad, bc = (_op(node, aten.mul.Tensor, x, y) for x, y in ((a, c), (b, d), (a, d), (b, c)))
    return _op(node, aten.sub.Tensor, ac, bd), _op(node, aten.add.Tensor, ad, bc)


def _quotient(node: Node) -> Pair | None:
    found = _both_parts(node)
    if found is None or found[0][1] is None or found[1][1] is not None:
        return None
    (a, b), (c, _) = found
    return _op(node, aten.div.Tensor, a, c), _op(node, aten.div.Tensor, b, c)


def _sum(node: Node) -> Pair | None:
    found = _both_parts(node)
    if found is None or any(part is None for _, part in found):
        return None
    (a, b), (c, d) = found
    return _op(node, node.target, a, c), _op(node, node.target, b, d)


def _conjugate(node: Node) -> Pair | None:
    pair = _pair(node.args[0])
    return None if pair is None else (pair[0], _op(node, aten.neg.default, pair[1]))


def _composed(node: Node) -> Pair | None:
    r, i = node.args
    return (r, i) if isinstance(r, Node) and isinstance(i, Node) else None


_MAKERS: dict[str, Callable[[Node], Pair | None]] = {
    "stft": _short_time_transform, "_fft_r2c": _real_transform, "view_as_complex": _from_real, "mul": _product,
    "div": _quotient, "add": _sum, "sub": _sum, "conj": _conjugate, "_conj": _conjugate, "complex": _composed,
}  # fmt: skip

RULE = ComplexPairs()
