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
from ingot.rewrite.complex_arithmetic import ARITHMETIC, Parts, polar_form
from ingot.rewrite.complex_transforms import (
    Pair,
    real_inverse,
    spectral_constant,
    spectral_op,
    transform_of,
    transformed,
)
from ingot.rewrite.decomposition import canonicalize_again, has_static_shapes
from ingot.rewrite.short_time_transforms import inverse_short_time_transform, short_time_transform
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
    "angle": lambda node, r, i: spectral_op(node, aten.atan2.default, i, r),
    "istft": inverse_short_time_transform,
    **dict.fromkeys(("_fft_c2r", "fft_irfft", "fft_irfft2", "fft_irfftn"), real_inverse),
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
    return _by_part(node)


def _by_part(node: Node) -> Pair | None:
    """The op on all real parts, and on all imaginary ones."""
    pairs = {n: _pair(n) for n in node.all_input_nodes if _is_complex(n)}
    if None in pairs.values() or any(value_of(n).is_floating_point() for n in node.all_input_nodes):
        return None
    r, i = (
        spectral_op(node, node.target, *torch.fx.map_arg(node.args, lambda n: pairs[n][k] if n in pairs else n))  # type: ignore[index]  # noqa: B023
        for k in (0, 1)
    )
    return r, i


def _spectrum(node: Node) -> Pair | None:
    found = transform_of(node)
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


def _parts(value: Any) -> Parts | None:
    if isinstance(value, complex):
        return value.real, value.imag
    return _pair(value) if _is_complex(value) else (value, None)


def _combined(node: Node) -> Pair | None:
    """Sums, products and quotients."""
    values: Any = node.args[1] if _name(node) == "einsum" else node.args
    found = [_parts(a) for a in values]
    if node.kwargs or len(found) != 2 or None in found:
        return None
    return ARITHMETIC[_name(node)](node, *found)  # type: ignore[arg-type]


def _exponential(node: Node) -> Pair | None:
    """exp(r) (cos i + i sin i)"""
    pair = _pair(node.args[0])
    return None if pair is None else polar_form(node, spectral_op(node, aten.exp.default, pair[0]), pair[1])


def _polar(node: Node) -> Pair | None:
    size, angle = node.args
    return polar_form(node, size, angle) if isinstance(size, Node) and isinstance(angle, Node) else None


def _conjugate(node: Node) -> Pair | None:
    pair = _pair(node.args[0])
    return None if pair is None else (pair[0], spectral_op(node, aten.neg.default, pair[1]))


def _composed(node: Node) -> Pair | None:
    r, i = node.args
    return (r, i) if isinstance(r, Node) and isinstance(i, Node) else None


_MAKERS: dict[str, Callable[[Node], Pair | None]] = {
    "stft": short_time_transform,
    **dict.fromkeys(("_fft_r2c", "_fft_c2c"), _spectrum),
    **dict.fromkeys((f"fft_{way}fft{n}" for way in ("", "i", "r") for n in ("", "2", "n")), _spectrum),
    "view_as_complex": _from_real,
    "complex": _composed,
    "polar": _polar,
    "exp": _exponential,
    **dict.fromkeys(ARITHMETIC, _combined),
    **dict.fromkeys(("cat", "stack", "slice_scatter", "select_scatter", "sum", "mean", "neg"), _by_part),
    **dict.fromkeys(("conj", "_conj"), _conjugate),
}

RULE = ComplexPairs()
