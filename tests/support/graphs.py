"""Random programs as data: a Hypothesis strategy draws them, an nn.Module interprets them.

A program is inputs, steps and outputs, all plain numbers: it can be printed, shrunk, and pasted into a test. While a
program is drawn, it runs on an example: each step fits the shapes of its inputs, and a step whose output grows or
vanishes is followed by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

Shape = tuple[int, ...]
Numbers = tuple[Any, ...]
Weights = dict[str, Tensor]
MOST_ELEMENTS, LONGEST, DEEPEST = 1024, 16, 5
LOUD, QUIET = 32.0, 1e-2  # beyond these a factor follows


@dataclass(frozen=True)
class Step:
    """One op: which values it reads (inputs first, then one value a step), its numbers, the seed of its weights."""

    op: str
    reads: tuple[int, ...]
    numbers: Numbers = ()
    seed: int = 0


@dataclass(frozen=True)
class Drawn:
    """A whole program. `outputs` are values by index; a value may be returned and read inside as well."""

    inputs: tuple[Shape, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    seed: int = 0


@dataclass(frozen=True)
class Op:
    """How a step of this name is drawn and run; `run` takes operands, then weights if it has any, then numbers."""

    kind: str
    run: Callable[..., Tensor]
    fits: Callable[[Shape], bool] = lambda s: True
    numbers: Callable[[Shape], st.SearchStrategy[Numbers]] = lambda s: st.just(())
    weights: Callable[[Sequence[Shape], Numbers], dict[str, Shape]] | None = None
    partners: Callable[[Shape, Shape], bool] | None = None  # for ops of two operands: does the other fit?
    often: int = 1


# ---- what fits, and the numbers of an op ----


def image(s: Shape) -> bool:
    return len(s) == 4


def roomy(s: Shape) -> bool:
    """An image with room for a window of two."""
    return image(s) and min(s[2:]) >= 2


def small(s: Shape) -> bool:
    """An image that may double in height and width."""
    return image(s) and max(s[2:]) <= 4 and math.prod(s) * 4 <= MOST_ELEMENTS


def ranked(low: int, high: int = DEEPEST) -> Callable[[Shape], bool]:
    return lambda s: low <= len(s) <= high


def spare(s: Shape) -> bool:
    """May double in any one dimension."""
    return 2 * math.prod(s) <= MOST_ELEMENTS and 2 * max(s) <= LONGEST


def dims(s: Shape) -> st.SearchStrategy[int]:
    """A dimension, counted from either end."""
    return st.integers(-len(s), len(s) - 1)


def one_dim(s: Shape) -> st.SearchStrategy[Numbers]:
    return st.tuples(dims(s))


def two_dims(s: Shape) -> st.SearchStrategy[Numbers]:
    return st.tuples(dims(s), dims(s))


def pairs(s: Shape) -> st.SearchStrategy[Numbers]:
    return st.sampled_from(list(combinations(range(len(s)), 2)))


def factored(s: Shape) -> list[Numbers]:
    """Every way to split one dimension into two."""
    return [(d, k, n // k) for d, n in enumerate(s) for k in (2, 3, 4) if n > k and n % k == 0]


def resized(s: Shape) -> st.SearchStrategy[Numbers]:
    n = math.prod(s)
    shapes = [(s[0], -1), (1, n), s[::-1], (s[0], s[-1], -1)]
    return st.sampled_from([(shape,) for shape in shapes])


@st.composite
def window(draw: st.DrawFn, s: Shape) -> Numbers:
    """A dimension, where to start, how much to take, and in which steps."""
    d = draw(st.integers(0, len(s) - 1))
    start = draw(st.integers(0, s[d] - 1))
    return d, start, draw(st.integers(1, s[d] - start)), draw(st.integers(1, 2))


@st.composite
def element(draw: st.DrawFn, s: Shape) -> Numbers:
    d = draw(st.integers(0, len(s) - 1))
    return d, draw(st.integers(0, s[d] - 1))


@st.composite
def piece(draw: st.DrawFn, s: Shape) -> Numbers:
    """A dimension, into how many pieces, which of them."""
    d = draw(st.integers(0, len(s) - 1))
    count = draw(st.integers(1, min(3, s[d])))
    pieces = len(torch.empty(s[d]).chunk(count))
    return d, count, draw(st.integers(0, pieces - 1))


@st.composite
def shuffled(draw: st.DrawFn, s: Shape) -> Numbers:
    d = draw(st.integers(0, len(s) - 1))
    return d, tuple(draw(st.permutations(range(s[d]))))


@st.composite
def pooled(draw: st.DrawFn, s: Shape) -> Numbers:
    """Kernel, stride, padding (at most half of the kernel)."""
    k = draw(st.integers(2, min(3, *s[2:])))
    return k, draw(st.integers(1, 2)), draw(st.integers(0, k // 2))


@st.composite
def convolved(draw: st.DrawFn, s: Shape) -> Numbers:
    """Output channels, kernel, stride, padding, groups, with a bias or not."""
    c, k = s[1], draw(st.sampled_from([1, 3] if min(s[2:]) >= 3 else [1]))
    groups = draw(st.sampled_from([g for g in (1, c, 2) if c % g == 0]))
    most = 8 // groups if groups <= 8 else 1
    out = groups * draw(st.integers(1, max(1, most)))
    return out, k, draw(st.integers(1, 2)), draw(st.sampled_from([0, k // 2])), groups, draw(st.booleans())


def mapped(s: Shape) -> st.SearchStrategy[Numbers]:
    """Output features, with a bias or not."""
    return st.tuples(st.integers(1, 8), st.booleans())


def bounds(s: Shape) -> st.SearchStrategy[Numbers]:
    return st.sampled_from([(-1.0, 1.0), (0.0, 6.0), (-0.5, 2.0), (0.25, 1.5)])


def factor(s: Shape) -> st.SearchStrategy[Numbers]:
    return st.sampled_from([(0.5,), (4.0,), (-1.0,), (0.1,), (12.0,)])


@st.composite
def filled(draw: st.DrawFn, s: Shape) -> Numbers:
    """A dimension, how much is added to it, and of which number."""
    return draw(st.integers(0, len(s) - 1)), draw(st.integers(1, 2)), draw(st.sampled_from([0.0, 1.0, -0.5, 3.0]))


# ---- the weights of an op ----


def conv_weights(shapes: Sequence[Shape], numbers: Numbers) -> dict[str, Shape]:
    out, k, _, _, groups, bias = numbers
    c = shapes[0][1]
    return {"weight": (out, c // groups, *[k] * (len(shapes[0]) - 2))} | ({"bias": (out,)} if bias else {})


def transposed_weights(shapes: Sequence[Shape], numbers: Numbers) -> dict[str, Shape]:
    return {"weight": (shapes[0][1], numbers[0], 2, 2)} | ({"bias": (numbers[0],)} if numbers[1] else {})


def linear_weights(shapes: Sequence[Shape], numbers: Numbers) -> dict[str, Shape]:
    return {"weight": (numbers[0], shapes[0][-1])} | ({"bias": (numbers[0],)} if numbers[1] else {})


def norm_weights(shapes: Sequence[Shape], numbers: Numbers) -> dict[str, Shape]:
    return {"gain": (shapes[0][-1],), "bias": (shapes[0][-1],)}


def batch_weights(shapes: Sequence[Shape], numbers: Numbers) -> dict[str, Shape]:
    return dict.fromkeys(("gain", "bias", "mean", "var"), (shapes[0][1],))


def joint_axis(s: Shape) -> int:
    return 1 if image(s) else -1


def joint_weights(shapes: Sequence[Shape], numbers: Numbers) -> dict[str, Shape]:
    c = sum(s[joint_axis(s)] for s in shapes)
    return {"weight": (numbers[2], c, 1, 1) if image(shapes[0]) else (numbers[2], c), "bias": (numbers[2],)}


def made_weights(step: Step, shapes: Sequence[Shape], seed: int) -> Weights:
    """Numbers that keep the scale of what they multiply."""
    asked = OPS[step.op].weights
    if asked is None:
        return {}
    generator = torch.Generator().manual_seed(1000 * seed + step.seed)
    made = {name: _made(name, shape, generator) for name, shape in asked(shapes, step.numbers).items()}
    return _in_order(made, step, shapes) if step.op == "joint" else made


def _made(name: str, shape: Shape, generator: torch.Generator) -> Tensor:
    if name in ("gain", "var"):
        return 0.5 + torch.rand(shape, generator=generator)
    spread = 1 / math.sqrt(math.prod(shape[1:])) if name == "weight" else 0.2
    return torch.randn(shape, generator=generator) * spread


def _in_order(made: Weights, step: Step, shapes: Sequence[Shape]) -> Weights:
    """The same weights for each operand, wherever in the join it stands."""
    parts = made["weight"].split([s[joint_axis(s)] for s in shapes], 1)
    return {**made, "weight": torch.cat([parts[i] for i in step.numbers[0]], 1)}


# ---- running an op ----

BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": torch.relu,
    "flip": lambda x: x.flip(0),
    "clamp": lambda x: x.clamp(-0.75, 0.75),
    "scale": lambda x: x * 0.5,
}


def joint(*args: Any) -> Tensor:
    """A join in a given order, something that does not care about it, and weights laid out to suit."""
    *xs, weights, order, between, _ = args
    x = BETWEEN[between](torch.cat([xs[i] for i in order], joint_axis(xs[0].shape)))
    return (F.conv2d if image(x.shape) else F.linear)(x, weights["weight"], weights["bias"])


def conv(x: Tensor, w: Weights, out: int, k: int, stride: int, pad: int, groups: int, bias: bool) -> Tensor:
    how = F.conv2d if image(x.shape) else F.conv1d
    return how(x, w["weight"], w.get("bias"), stride, pad, 1, groups)


def batch_norm(x: Tensor, w: Weights) -> Tensor:
    return F.batch_norm(x, w["mean"], w["var"], w["gain"], w["bias"], training=False)


def sliced(x: Tensor, d: int, start: int, count: int, step: int) -> Tensor:
    return x[(slice(None),) * d + (slice(start, start + count, step),)]


def fill_shape(x: Tensor, d: int, count: int) -> Shape:
    return tuple(count if i == d else n for i, n in enumerate(x.shape))


def cat_full(x: Tensor, d: int, count: int, value: float) -> Tensor:
    made = torch.full(fill_shape(x, d, count), value, dtype=x.dtype, device=x.device)
    return torch.cat([x, made], d)


def cat_zeros(x: Tensor, d: int, count: int, value: float) -> Tensor:
    return torch.cat([torch.zeros(fill_shape(x, d, count), dtype=x.dtype), x], d)


def add_arange(x: Tensor, start: float) -> Tensor:
    return x + 0.1 * torch.arange(start, start + x.shape[-1], dtype=torch.float32, device=x.device)


def where_positive(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def interpolated(x: Tensor, mode: str) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode=mode)


def gram(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b.transpose(-1, -2)) * a.shape[-1] ** -0.5


def gram_fits(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) >= 2 and a[:-2] == b[:-2] and a[-1] == b[-1] and math.prod(a[:-1]) * b[-2] <= MOST_ELEMENTS


def broadcasts(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(y in (x, 1) for x, y in zip(a, b, strict=True))


def equal(a: Shape, b: Shape) -> bool:
    return a == b


ALWAYS = st.just
OPS: dict[str, Op] = {
    # moves
    "permute": Op("moves", lambda x, *p: x.permute(p), ranked(2), lambda s: st.permutations(range(len(s))).map(tuple)),
    "transpose": Op("moves", torch.transpose, ranked(2), two_dims),
    "moveaxis": Op("moves", torch.moveaxis, ranked(2), two_dims),
    "flatten": Op("moves", torch.flatten, ranked(3), pairs),
    "unflatten": Op(
        "moves",
        lambda x, d, *sizes: x.unflatten(d, sizes),
        lambda s: len(s) < DEEPEST and bool(factored(s)),
        lambda s: st.sampled_from(factored(s)),
    ),
    "reshape": Op("moves", torch.reshape, ranked(2), resized),
    "slice": Op("moves", sliced, numbers=window),
    "narrow": Op("moves", lambda x, d, start, count, _: x.narrow(d, start, count), numbers=window),
    "select": Op("moves", torch.select, ranked(3), element),
    "chunk": Op("moves", lambda x, d, count, which: x.chunk(count, d)[which], numbers=piece),
    "index_select": Op("moves", lambda x, d, order: x.index_select(d, torch.tensor(order)), numbers=shuffled),
    "flip": Op("moves", lambda x, *d: x.flip(d), ranked(2), pairs),
    "roll": Op("moves", lambda x, d, shift: x.roll(shift, d), numbers=lambda s: st.tuples(dims(s), st.integers(1, 3))),
    "unsqueeze": Op("moves", torch.unsqueeze, ranked(1, 4), one_dim),
    "squeeze": Op("moves", torch.squeeze, ranked(3), one_dim),
    "repeat": Op(
        "moves",
        lambda x, d: x.repeat([1 + (i == d) for i in range(x.dim())]),
        spare,
        lambda s: st.tuples(st.integers(0, len(s) - 1)),
    ),
    "pixel_shuffle": Op("moves", lambda x: F.pixel_shuffle(x, 2), lambda s: small(s) and s[1] % 4 == 0, often=3),
    "pixel_unshuffle": Op(
        "moves",
        lambda x: F.pixel_unshuffle(x, 2),
        lambda s: image(s) and s[1] <= 2 and not (s[2] % 2 or s[3] % 2),
        often=3,
    ),
    "pad": Op(
        "moves",
        lambda x, value: F.pad(x, (1, 0, 1, 1), value=value),
        small,
        lambda s: st.sampled_from([(0.0,), (0.0,), (1.0,)]),
    ),
    # selects
    "relu": Op("selects", torch.relu),
    "clamp": Op("selects", torch.clamp, numbers=bounds),
    "hardtanh": Op("selects", F.hardtanh, numbers=bounds),
    "max_pool": Op("selects", F.max_pool2d, roomy, pooled, often=3),
    "amax": Op("selects", torch.amax, ranked(3), one_dim),
    "where": Op("selects", where_positive),
    "maximum": Op("selects", torch.maximum, partners=equal),
    "minimum": Op("selects", torch.minimum, partners=equal),
    # blends
    "avg_pool": Op("blends", F.avg_pool2d, roomy, pooled, often=3),
    "mean": Op("blends", lambda x, keep: x.mean((2, 3), keepdim=keep), image, lambda s: st.tuples(st.booleans())),
    "mean_of_one": Op("blends", torch.mean, ranked(3), one_dim),
    "nearest": Op("blends", lambda x: interpolated(x, "nearest"), small, often=3),
    "bilinear": Op("blends", lambda x: interpolated(x, "bilinear"), small, often=2),
    "adaptive": Op("blends", F.adaptive_avg_pool2d, roomy, lambda s: st.tuples(st.integers(1, 2))),
    # creates
    "cat_full": Op("creates", cat_full, spare, filled),
    "cat_zeros": Op("creates", cat_zeros, spare, filled),
    "cat_like": Op("creates", lambda x, d, _, value: torch.cat([torch.full_like(x, value), x], d), spare, filled),
    "add_ones": Op("creates", lambda x: x + torch.ones(x.shape, dtype=x.dtype, device=x.device)),
    "add_arange": Op("creates", add_arange, numbers=lambda s: st.sampled_from([(0.0,), (-3.0,)])),
    # computes
    "scale": Op("computes", lambda x, f: x * f, numbers=factor),
    "shift": Op("computes", lambda x, f: x + f, numbers=factor),
    "conv2d": Op("computes", conv, image, convolved, conv_weights, often=6),
    "conv1d": Op("computes", conv, ranked(3, 3), convolved, conv_weights, often=2),
    "transposed": Op(
        "computes",
        lambda x, w, *_: F.conv_transpose2d(x, w["weight"], w.get("bias"), 2),
        small,
        mapped,
        transposed_weights,
    ),
    "linear": Op(
        "computes", lambda x, w, *_: F.linear(x, w["weight"], w.get("bias")), ranked(2), mapped, linear_weights, often=3
    ),
    "batch_norm": Op("computes", batch_norm, image, weights=batch_weights, often=2),
    "layer_norm": Op(
        "computes",
        lambda x, w: F.layer_norm(x, x.shape[-1:], w["gain"], w["bias"]),
        lambda s: s[-1] >= 3,
        weights=norm_weights,
    ),
    "sigmoid": Op("computes", torch.sigmoid),
    "tanh": Op("computes", torch.tanh),
    "gelu": Op("computes", F.gelu),
    "silu": Op("computes", F.silu),
    "hardswish": Op("computes", F.hardswish),
    "leaky_relu": Op("computes", F.leaky_relu),
    "abs": Op("computes", torch.abs),
    "softmax": Op("computes", torch.softmax, numbers=one_dim),
    "add": Op("computes", torch.add, partners=broadcasts, often=3),
    "sub": Op("computes", torch.sub, partners=broadcasts),
    "mul": Op("computes", torch.mul, partners=broadcasts, often=2),
    "gram": Op("computes", gram, ranked(2, 4), partners=gram_fits),
    # joins of several: drawn apart
    "cat": Op("joins", lambda *args: torch.cat(args[:-1], args[-1])),
    "stack": Op("joins", lambda *args: torch.stack(args[:-1], args[-1])),
    "joint": Op("joins", joint, weights=joint_weights),
}
KINDS = ("computes", "computes", "computes", "selects", "moves", "moves", "joins", "blends", "creates")
COMMUTE = ("add", "mul", "maximum", "minimum")


def run_step(step: Step, operands: Sequence[Tensor], weights: Weights) -> Tensor:
    given = (weights,) if OPS[step.op].weights else ()
    return OPS[step.op].run(*operands, *given, *step.numbers)


# ---- the module ----


class Net(nn.Module):
    """Interprets a drawn program."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn
        self.layers = nn.ModuleList()
        values = list(batch_of(drawn, 0))
        for step in drawn.steps:
            operands = [values[i] for i in step.reads]
            weights = made_weights(step, [tuple(x.shape) for x in operands], drawn.seed)
            self.layers.append(Layer(weights))
            values.append(run_step(step, operands, weights))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for step, layer in zip(self.drawn.steps, self.layers, strict=True):
            values.append(run_step(step, [values[i] for i in step.reads], layer.weights()))
        return tuple(values[i] for i in self.drawn.outputs)


class Layer(nn.Module):
    """The weights of one step."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.names = tuple(weights)
        for name, value in weights.items():
            self.register_buffer(name, value)

    def weights(self) -> Weights:
        return {name: getattr(self, name) for name in self.names}


def batch_of(drawn: Drawn, number: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7919 * drawn.seed + number)
    return tuple(torch.randn(shape, generator=generator) for shape in drawn.inputs)


def batches_of(drawn: Drawn, count: int = 3) -> list[tuple[Tensor, ...]]:
    return [batch_of(drawn, i) for i in range(count)]


# ---- drawing ----


def fitting(kind: str, shape: Shape) -> list[str]:
    """What may follow a value of this shape, the frequent more than once."""
    return [name for name, op in OPS.items() if op.kind == kind and op.fits(shape) for _ in range(op.often)]


class Draft:
    """A program under way: its values on the first batch are at hand."""

    def __init__(self, draw: st.DrawFn, inputs: tuple[Shape, ...], seed: int) -> None:
        self.draw, self.drawn = draw, Drawn(inputs, (), (), seed)
        self.values = list(batch_of(self.drawn, 0))
        self.steps: list[Step] = []

    def shape(self, i: int) -> Shape:
        return tuple(self.values[i].shape)

    def pick(self) -> int:
        """Mostly the newest value, so that programs are deep; at times any."""
        how = self.draw(st.sampled_from(["newest", "newest", "newest", "newest", "image", "image", "any"]))
        if how == "any":
            return self.draw(st.integers(0, len(self.values) - 1))
        images = [i for i in range(len(self.values)) if image(self.shape(i))] if how == "image" else []
        return images[-1] if images else len(self.values) - 1

    def add(self, op: str, reads: tuple[int, ...], numbers: Numbers = ()) -> None:
        step = Step(op, reads, numbers, seed=len(self.steps))
        operands = [self.values[i] for i in reads]
        weights = made_weights(step, [tuple(x.shape) for x in operands], self.drawn.seed)
        self.values.append(run_step(step, operands, weights))
        self.steps.append(step)
        self._calm()

    def _calm(self) -> None:
        """A fixed factor after what grew or faded: forty steps on, numbers are still of the order of one."""
        most = float(self.values[-1].abs().max())
        if most > LOUD or 0 < most < QUIET:
            self.add("scale", (len(self.values) - 1,), (2.0 ** -round(math.log2(most)),))

    def step(self) -> None:
        kind, first = self.draw(st.sampled_from(KINDS)), self.pick()
        if kind == "joins":
            return self.join(first)
        return self.one(self.draw(st.sampled_from(fitting(kind, self.shape(first)) or ["relu"])), first)

    def one(self, name: str, first: int) -> None:
        op, shape = OPS[name], self.shape(first)
        partners = op.partners
        if partners is None:
            return self.add(name, (first,), self.draw(op.numbers(shape)))
        others = [i for i in range(len(self.values)) if partners(shape, self.shape(i))]
        if not others:
            return self.add("relu", (first,))
        reads = (first, self.draw(st.sampled_from(others[::-1])))
        return self.add(name, reads if shape != self.shape(reads[1]) or self.draw(st.booleans()) else reads[::-1])

    def join(self, first: int) -> None:
        how = self.draw(st.sampled_from(["cat", "cat", "joint", "stack"]))
        if how == "stack" and len(self.shape(first)) < DEEPEST:
            return self.add("stack", *self._stacked(first))
        return (
            self.joint(first)
            if how == "joint"
            else self.add("cat", *self._joined(first, self.draw(dims(self.shape(first)))))
        )

    def joint(self, first: int) -> None:
        reads, _ = self._joined(first, joint_axis(self.shape(first)))
        numbers = (tuple(range(len(reads))), self.draw(st.sampled_from(list(BETWEEN))), self.draw(st.integers(1, 8)))
        self.add("joint", reads, numbers)

    def _stacked(self, first: int) -> tuple[tuple[int, ...], Numbers]:
        alike = [i for i in range(len(self.values)) if self.shape(i) == self.shape(first)]
        room = max(1, MOST_ELEMENTS // math.prod(self.shape(first)))
        return self._several(first, alike, room), (self.draw(dims((*self.shape(first), 1))),)

    def _joined(self, first: int, axis: int) -> tuple[tuple[int, ...], Numbers]:
        """Values that differ along the axis at most, the same one twice too."""
        rest = _without(self.shape(first), axis)
        alike = [i for i in range(len(self.values)) if _without(self.shape(i), axis) == rest]
        longest = max(self.shape(i)[axis] for i in alike)
        room = max(1, min(LONGEST // longest, MOST_ELEMENTS // (math.prod(rest) * longest)))
        return self._several(first, alike, room), (axis,)

    def _several(self, first: int, alike: list[int], room: int) -> tuple[int, ...]:
        more = st.lists(st.sampled_from(alike[::-1]), min_size=min(1, room - 1), max_size=min(3, room - 1))
        return tuple(self.draw(st.permutations([first, *self.draw(more)])))

    def finished(self) -> Drawn:
        """One to four outputs, the last value among them; what nobody reads goes."""
        read = {i for step in self.steps for i in step.reads}
        made = range(len(self.drawn.inputs), len(self.values))
        loose = [i for i in reversed(made) if i not in read]
        most = st.sampled_from([*loose[1:], *loose[1:], *loose[1:], *made])
        more = self.draw(st.lists(most, min_size=min(3, len(loose) // 2), max_size=3))
        outputs = tuple(dict.fromkeys([len(self.values) - 1, *more]))
        return pruned(replace(self.drawn, steps=tuple(self.steps), outputs=outputs))


def _without(s: Shape, axis: int) -> Shape:
    i = axis % len(s)
    return (*s[:i], -1, *s[i + 1 :]) if len(s) > 0 else s


def pruned(drawn: Drawn) -> Drawn:
    """Only the steps that an output depends on, and all inputs."""
    start, needed = len(drawn.inputs), set(drawn.outputs)
    for i in reversed(range(len(drawn.steps))):
        if start + i in needed:
            needed |= set(drawn.steps[i].reads)
    kept = [i for i in range(start + len(drawn.steps)) if i < start or i in needed]
    new = {old: i for i, old in enumerate(kept)}
    steps = [
        replace(drawn.steps[i - start], reads=tuple(new[r] for r in drawn.steps[i - start].reads)) for i in kept[start:]
    ]
    return replace(drawn, steps=tuple(steps), outputs=tuple(new[i] for i in drawn.outputs))


def shapes() -> st.SearchStrategy[Shape]:
    """Mostly images."""
    few, size = st.integers(1, 2), st.integers(1, 8)
    a_picture = st.tuples(few, st.integers(2, 8), st.integers(3, 8), st.integers(3, 8))
    return st.one_of(
        a_picture,
        a_picture,
        a_picture,
        st.tuples(few, size, size, size),
        st.tuples(few, size, size),
        st.tuples(few, size),
    )


def sizes() -> st.SearchStrategy[int]:
    """Mostly a few steps, which are easy to read; sometimes very many, about forty of which are live at the end."""
    return st.one_of(st.integers(1, 8), st.integers(2, 20), st.integers(40, 70))


@st.composite
def programs(draw: st.DrawFn, joined: bool = False) -> Drawn:
    """A program; with `joined` it has a join whose operands may change places."""
    draft = Draft(draw, tuple(draw(st.lists(shapes(), min_size=1, max_size=2))), draw(st.integers(0, 99)))
    wanted = draw(sizes())
    place = draw(st.integers(0, wanted - 1)) if joined else -1
    while len(draft.steps) < wanted:
        if len(draft.steps) >= place >= 0:
            draft.joint(draft.pick())
            place = -1
        else:
            draft.step()
    return draft.finished()


# ---- the same program in another order ----


def reordered(drawn: Drawn, order: Callable[[int], Sequence[int]]) -> Drawn:
    """The same values, with the operands of each `joint` in the order given for their number, and a + b as b + a."""
    return replace(drawn, steps=tuple(_reordered(s, order) for s in drawn.steps))


def _reordered(step: Step, order: Callable[[int], Sequence[int]]) -> Step:
    if step.op in COMMUTE:
        return replace(step, reads=step.reads[::-1])
    if step.op == "joint":
        return replace(step, numbers=(tuple(order(len(step.reads))), *step.numbers[1:]))
    return step
