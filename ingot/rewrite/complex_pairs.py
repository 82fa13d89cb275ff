"""abs(stft(x, window)) -> sqrt(r * r + i * i), with r, i = conv1d(x, windowed cosines), conv1d(x, windowed sines)

Complex values become pairs of floats: transforms of fixed length are products with constant matrices, products and
moves are written out. Backends have no complex numbers, and the runtime has no transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, constant_of, replace, source_of, value_name, value_of
from ingot.rewrite.complex_transforms import (
    Pair,
    forward_transform,
    inverse_real_transform,
    short_time_transform,
    spectral_constant,
    spectral_op,
    transformed,
)
from ingot.rewrite.decomposition import canonicalize_again, has_static_shapes
from ingot.rewrite.trial_moves import moves_by_trial

aten = torch.ops.aten


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


# ---- real results


def _magnitude(node: Node, r: Node, i: Node) -> Node:
    squares = [spectral_op(node, aten.mul.Tensor, x, x) for x in (r, i)]
    return spectral_op(node, aten.sqrt.default, spectral_op(node, aten.add.Tensor, *squares))


def _stacked(node: Node, r: Node, i: Node) -> Node:
    shape = [*value_of(r).shape, 1]
    return spectral_op(node, aten.cat.default, [spectral_op(node, aten.reshape.default, x, shape) for x in (r, i)], -1)


_SINKS: dict[str, Callable[[Node, Node, Node], Node | None]] = {
    "abs": _magnitude,
    "view_as_real": _stacked,
    "real": lambda node, r, i: r,
    "imag": lambda node, r, i: i,
    "_fft_c2r": inverse_real_transform,
    "fft_irfft": inverse_real_transform,
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
        return spectral_constant(at, constant.real, node.name), spectral_constant(at, constant.imag, node.name)
    maker = _MAKERS.get(_name(node))
    if node.op != "call_function" or not has_static_shapes(node):
        return None
    return maker(node) if maker is not None else _moved(node)


def _moved(node: Node) -> Pair | None:
    """reshape, permute, slice, select …: both parts alike."""
    sources = node.all_input_nodes
    if len(sources) != 1 or not _is_complex(sources[0]) or not moves_by_trial(node, sources[0]):
        return None
    pair = _pair(sources[0])
    if pair is None:
        return None
    r, i = (spectral_op(node, node.target, *torch.fx.map_arg(node.args, {sources[0]: x}.get)) for x in pair)
    return r, i


def _spectrum(node: Node) -> Pair | None:
    found = forward_transform(node)
    if found is None:
        return None
    pair = _pair(found.x) if _is_complex(found.x) else (found.x, None)
    return None if pair is None else transformed(node, found, *pair)


def _from_real(node: Node) -> Pair | None:
    """view_as_complex: the last axis has both parts."""
    x: Any = node.args[0]
    shape = list(value_of(node).shape)
    parts = [spectral_op(node, aten.slice.Tensor, x, value_of(x).dim() - 1, k, k + 1) for k in (0, 1)]
    r, i = (spectral_op(node, aten.reshape.default, p, shape) for p in parts)
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
        return spectral_op(node, aten.mul.Tensor, c, a), spectral_op(node, aten.mul.Tensor, d, a)
    ac, bd, ad, bc = (spectral_op(node, aten.mul.Tensor, x, y) for x, y in ((a, c), (b, d), (a, d), (b, c)))
    return spectral_op(node, aten.sub.Tensor, ac, bd), spectral_op(node, aten.add.Tensor, ad, bc)


def _quotient(node: Node) -> Pair | None:
    found = _both_parts(node)
    if found is None or found[0][1] is None or found[1][1] is not None:
        return None
    (a, b), (c, _) = found
    return spectral_op(node, aten.div.Tensor, a, c), spectral_op(node, aten.div.Tensor, b, c)


def _sum(node: Node) -> Pair | None:
    found = _both_parts(node)
    if found is None or any(part is None for _, part in found):
        return None
    (a, b), (c, d) = found
    return spectral_op(node, node.target, a, c), spectral_op(node, node.target, b, d)


def _conjugate(node: Node) -> Pair | None:
    pair = _pair(node.args[0])
    return None if pair is None else (pair[0], spectral_op(node, aten.neg.default, pair[1]))


def _composed(node: Node) -> Pair | None:
    r, i = node.args
    return (r, i) if isinstance(r, Node) and isinstance(i, Node) else None


_MAKERS: dict[str, Callable[[Node], Pair | None]] = {
    "stft": short_time_transform,
    **dict.fromkeys(("fft_fft", "fft_fftn", "fft_rfft", "_fft_r2c", "_fft_c2c"), _spectrum),
    "view_as_complex": _from_real,
    "complex": _composed,
    "mul": _product,
    "div": _quotient,
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("conj", "_conj"), _conjugate),
}

RULE = ComplexPairs()
