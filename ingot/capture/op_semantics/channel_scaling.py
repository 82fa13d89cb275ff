"""Does an op commute with a positive factor for each channel, f(x / s) = f(x) / s? Found by running it.

The channels of a value are a tensor of channel numbers that broadcasts to it: one number for each element, of size 1
along the dimensions in which all elements are of one channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from ingot.capture.op_semantics.effect import operands
from ingot.capture.op_semantics.harness import ConstantLookup, Probe, ProbeBuilder, ProbeConfig
from ingot.capture.op_semantics.probe import effect_of, one_thread, structure_key
from ingot.capture.op_semantics.sizes import shape_of
from ingot.capture.op_semantics.tagged_values import ProbeError
from ingot.core.shape_cache import ShapeCache

MAX_ELEMENTS = 1 << 20  # of an op that is run at full size
MAGNITUDES = (0.01, 1.0, 100.0)  # a function may be nearly linear in one of them
BELOW_BOUNDS = 0.45  # of a clamp's bound: the factors of the experiment are at most 2
TOLERANCE = 1e-9
Channels = Mapping[int, Tensor]  # by operand


@dataclass(frozen=True, eq=False)
class ScaledResult:
    """The channels of the result of an op whose operands are divided by factors."""

    channels: Tensor
    joint: bool = False  # all these operands must have the same factor at the same element (add)
    bounds: tuple[float, ...] = ()  # of a clamp: it commutes for values within them only


_results = ShapeCache[ScaledResult | None]()


def scaled_result(node: Node, channels: Channels, constant: ConstantLookup = lambda n: None) -> ScaledResult | None:
    """The channels of the result; None where the op does not commute with factors of these operands."""
    dims = {i: varying_dims(c) for i, c in channels.items()}
    if all(len(d) == 1 for d in dims.values()):
        ranks = [(i, *d, channels[i].dim()) for i, d in dims.items()]
        key = structure_key(node, constant), tuple(ranks)
        small = _results.get(key, lambda: _guarded(node, {i: d[0] for i, d in dims.items()}, constant))
        if small is not None and (found := _at_full_size(node, channels, small)) is not None:
            return found
    tensors = [n.meta.get("val") for n in (node, *operands(node))]
    if sum(math.prod(shape_of(t)) for t in tensors if isinstance(t, Tensor)) > MAX_ELEMENTS:
        return None
    return _guarded(node, channels, constant)


def varying_dims(channels: Tensor) -> list[int]:
    return [d for d, size in enumerate(channels.shape) if size > 1]


def _at_full_size(node: Node, channels: Channels, small: ScaledResult) -> ScaledResult | None:
    """One dimension of the result has the channels of the first operand, in order."""
    vector, dims = next(iter(channels.values())).reshape(-1), varying_dims(small.channels)
    rank, count = small.channels.dim(), small.channels.numel()
    if len(dims) != 1 or not torch.equal(small.channels.reshape(-1), torch.arange(count)):
        return None
    if shape_of(node.meta["val"])[dims[0]] != len(vector):
        return None
    full = vector.reshape([-1 if d == dims[0] else 1 for d in range(rank)])
    return ScaledResult(full, small.joint, small.bounds)


def _guarded(node: Node, channels: Channels | Mapping[int, int], constant: ConstantLookup) -> ScaledResult | None:
    """`channels` by operand; or the dimension along which they lie, to be run at reduced sizes."""
    try:
        with torch.random.fork_rng(devices=[]), one_thread(), torch.no_grad(), _disable_current_modes():
            shrunk = any(isinstance(c, int) for c in channels.values())
            probe = ProbeBuilder(node, ProbeConfig(torch.float64, "small", 0, shrunk=shrunk), constant).build()
            shapes = {x.operand: x.shape for x in probe.float_args}
            numbers = _small(shapes, channels) if shrunk else _local(channels)  # type: ignore[arg-type]
            found = _find(node, probe, numbers)
            return found if shrunk or found is None else _global(found, channels)  # type: ignore[arg-type]
    except Exception:  # a kernel may raise anything; then the op is not known to commute
        return None


def _small(shapes: Mapping[int, tuple[int, ...]], dims: Mapping[int, int]) -> dict[int, Tensor]:
    """Channels of their own along that dimension of each operand."""
    made, start = dict[int, Tensor](), 0
    for i, d in dims.items():
        size = shapes[i][d]
        made[i] = torch.arange(start, start + size).reshape([-1 if k == d else 1 for k in range(len(shapes[i]))])
        start += size
    return made


def _local(channels: Channels) -> dict[int, Tensor]:
    """Numbered from 0, so that a table of factors is short."""
    known = _all_numbers(channels)
    return {i: torch.searchsorted(known, c) for i, c in channels.items()}


def _global(found: ScaledResult, channels: Channels) -> ScaledResult:
    return ScaledResult(_all_numbers(channels)[found.channels], found.joint, found.bounds)


def _all_numbers(channels: Channels) -> Tensor:
    return torch.cat([c.reshape(-1) for c in channels.values()]).unique()


def _find(node: Node, probe: Probe, channels: Channels) -> ScaledResult | None:
    """The op run on the channel numbers tells where they go; an elementwise op leaves them where they are."""
    reach = [abs(c) for c in effect_of(node).constants if c and math.isfinite(c)]
    shape = _result_shape(probe, channels)
    for numbers, joint in ((_moved(probe, channels, shape), False), (_kept(channels, shape), len(channels) > 1)):
        if numbers is None:
            continue
        first = next(iter(channels.values()))
        scaled = dict.fromkeys(channels, first) if joint else channels
        magnitudes = [BELOW_BOUNDS * min(reach)] if reach else MAGNITUDES
        if all(_commutes(probe, scaled, numbers.expand(shape), m) for m in magnitudes):
            bounds = tuple(c for c in effect_of(node).constants if c and math.isfinite(c))
            return ScaledResult(numbers, joint, bounds)
    return None


def _result_shape(probe: Probe, channels: Channels) -> torch.Size:
    args, kwargs = torch.utils._pytree.tree_map_only(
        type(probe.float_args[0]), lambda x: torch.ones(x.shape, dtype=torch.float64), probe.template
    )
    result = probe.target(*args, **kwargs)
    if not isinstance(result, Tensor) or not result.is_floating_point() or not result.numel():
        raise ProbeError("the op does not return one float tensor")
    return result.shape


def _moved(probe: Probe, channels: Channels, shape: torch.Size) -> Tensor | None:
    """The op on the channel numbers, from 1; its zeros (of a pad) may be of any channel. None: other numbers."""
    inputs = [_expanded(channels[x.operand], x.shape) if x.operand in channels else _ones(x) for x in probe.float_args]
    result = probe.run(inputs).reshape(shape)
    most = max(int(c.max()) for c in channels.values())
    whole = result.round()
    fits = bool(((result - whole).abs() < 1e-6).all()) and float(whole.min()) >= 0 and float(whole.max()) <= most + 1
    return (_compressed(whole.long()) - 1).clamp_min(0) if fits else None


def _ones(x: object) -> Tensor:
    return torch.ones(x.shape, dtype=torch.float64)  # type: ignore[attr-defined]


def _expanded(channels: Tensor, shape: Sequence[int]) -> Tensor:
    return (channels + 1).double().expand(torch.broadcast_shapes(channels.shape, tuple(shape)))


def _kept(channels: Channels, shape: torch.Size) -> Tensor | None:
    first = next(iter(channels.values()))
    try:
        fits = torch.broadcast_shapes(first.shape, shape) == shape
    except RuntimeError:
        return None
    return first.reshape([1] * (len(shape) - first.dim()) + list(first.shape)) if fits else None


def _commutes(probe: Probe, channels: Channels, result: Tensor, magnitude: float) -> bool:
    generator = torch.Generator().manual_seed(19)
    inputs = [torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1 for x in probe.float_args]
    most = max(int(result.max()), *(int(c.max()) for c in channels.values()))
    factors = 2 ** (torch.rand(most + 1, generator=generator, dtype=torch.float64) * 2 - 1)
    pairs = list(zip(probe.float_args, inputs, strict=True))
    plain = [x * magnitude if a.operand in channels else x for a, x in pairs]
    scaled = [
        x / factors[channels[a.operand]] if a.operand in channels else x for (a, _), x in zip(pairs, plain, strict=True)
    ]
    y, z = probe.run(plain), probe.run(scaled) * factors[result].reshape(-1)
    size = y[y.isfinite()].abs().max() if bool(y.isfinite().any()) else torch.tensor(1.0)
    return bool(((y == z) | ((y - z).abs() <= TOLERANCE * size)).all())


def _compressed(numbers: Tensor) -> Tensor:
    """Of size 1 along each dimension in which all are alike; 0 is like any."""
    for d in range(numbers.dim()):
        most = numbers.amax(d, keepdim=True)
        numbers = most if bool(((numbers == most) | (numbers == 0)).all()) else numbers
    return numbers
