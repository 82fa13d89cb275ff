"""Draw a random program from a seed: the same seed gives the same program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from fuzz.net import DISTRIBUTIONS, input_tensors, made_weights, results_of, run_step
from fuzz.ops import DEEPEST, LONGEST, MOST, OPS, kind_of
from fuzz.program import FuzzProgram, Input, Shape, Step

# Rows: target, how often. Arm's compilers take seconds, so they are drawn less often.
TARGETS = {"xnnpack": 60, "ethos-u55-128": 11, "ethos-u85-256": 9, "vgf": 10, "vulkan": 10}
SIZES = ((1, 3, 35), (2, 6, 40), (6, 12, 20), (12, 30, 5))  # fewest steps, most steps, how often
LOUD, QUIET = 64.0, 1e-3  # beyond these a factor follows


def draw_program(seed: int, target: str | None = None) -> FuzzProgram:
    random = Random(seed)
    chosen = _weighted(random, TARGETS)
    inputs = {f"i{n}": _input(random) for n in range(_weighted(random, {1: 6, 2: 3, 3: 1}))}
    empty = FuzzProgram(seed, target or chosen, inputs, (), ())
    return _finished(random, _Draft(random, empty))


def _weighted(random: Random, choices: Mapping[Any, float]) -> Any:
    return random.choices(list(choices), list(choices.values()))[0]


# ---- inputs ----


def _input(random: Random) -> Input:
    dtype = _weighted(random, {"float32": 88, "int64": 6, "int32": 2, "bool": 2, "float16": 1, "float64": 1})
    values = "normal" if random.random() < 0.6 else random.choice(list(DISTRIBUTIONS))
    layout = _weighted(random, {"contiguous": 8, "channels_last": 1, "transposed": 1})
    return Input(_shape(random), dtype, values, layout)


def _shape(random: Random) -> Shape:
    few = _weighted(random, {1: 6, 2: 3, 3: 1})
    kind = _weighted(random, {"image": 45, "sequence": 25, "row": 12, "any": 15, "scalar": 1.5, "empty": 1.5})
    if kind == "image":
        return few, random.choice([1, 2, 3, 4, 8]), random.randint(1, 9), random.randint(1, 9)
    if kind == "sequence":
        return few, random.randint(1, 9), random.choice([1, 2, 4, 8, 16])
    if kind == "row":
        return few, random.choice([1, 3, 8, 32])
    if kind == "any":
        return tuple(random.randint(1, 5) for _ in range(random.randint(1, 5)))
    return () if kind == "scalar" else (few, 0, 3)


# ---- steps ----


class _Draft:
    """A program under way, with its values on the first batch."""

    def __init__(self, random: Random, program: FuzzProgram) -> None:
        self.random, self.program = random, program
        self.values: dict[str, Tensor] = dict(zip(program.inputs, input_tensors(program, 0), strict=True))
        self.steps: list[Step] = []
        low, high, _ = random.choices(SIZES, [s[2] for s in SIZES])[0]
        wanted = random.randint(low, high)
        for _ in range(20 * wanted):
            if len(self.steps) >= wanted:
                break
            self._step()

    def _step(self) -> None:
        name, first = self._op(), self._first()
        op, x = OPS[name], self.values[first]
        if op.reads not in ("any", kind_of(x)):
            return
        try:
            drawn = op.draw(self.random, x, self.values)
        except ArithmeticError:  # a size of zero
            return
        if drawn is not None:
            self._try(Step(f"s{len(self.steps)}", name, (first, *drawn[0]), drawn[1], self._tied(name)))

    def _op(self) -> str:
        return self.random.choices(list(OPS), [o.often for o in OPS.values()])[0]

    def _first(self) -> str:
        """Mostly the newest value, so that programs are deep."""
        names = list(self.values)
        return names[-1] if self.random.random() < 0.7 else self.random.choice(names)

    def _tied(self, op: str) -> str | None:
        before = [s.name for s in self.steps if s.op == op and OPS[op].weights]
        return self.random.choice(before) if before and self.random.random() < 0.5 else None

    def _try(self, step: Step) -> None:
        """Run it; leave it out where it fails, grows too large or is not finite."""
        operands = [self.values[n] for n in step.reads]
        step = replace(step, tied=step.tied if self._can_tie(step, operands) else None)
        try:
            with torch.no_grad():
                weights = made_weights(step, [tuple(x.shape) for x in operands], 0)
                made = results_of(step, run_step(step, [x.clone() for x in operands], weights))
        except (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError):
            return
        if made and all(_usable(t) for t in made.values()) and not _places_of_equals(operands, made):
            self.steps.append(step)
            self.values |= made
            self._calm(next(iter(made)))

    def _can_tie(self, step: Step, operands: list[Tensor]) -> bool:
        tied = next((s for s in self.steps if s.name == step.tied), None)
        if tied is None:
            return False
        asked: Any = OPS[step.op].weights
        before = asked([tuple(self.values[n].shape) for n in tied.reads], tied.attributes)
        return before == asked([tuple(x.shape) for x in operands], step.attributes)

    def _calm(self, name: str) -> None:
        """A factor after what grew or faded, as normalised nets keep their numbers near one."""
        x = self.values[name]
        if not x.dtype.is_floating_point or not x.numel() or self.random.random() < 0.15:
            return
        most = float(x.abs().max())
        if most > LOUD or 0 < most < QUIET:
            self._try(Step(f"s{len(self.steps)}", "scale", (name,), {"by": 1.0 / most}))


def _places_of_equals(operands: list[Tensor], made: Mapping[str, Tensor]) -> bool:
    """Which of equal values a median or a sort names is not defined: such indices cannot be judged."""
    placed = len(made) > 1 and any(t.dtype is torch.int64 for t in made.values())
    return placed and any(len(x.unique()) < x.numel() for x in operands if x.dtype.is_floating_point)


def _usable(t: Tensor) -> bool:
    fits = t.numel() <= 4 * MOST and t.dim() <= DEEPEST + 1 and all(n <= 8 * LONGEST for n in t.shape)
    return fits and (not t.dtype.is_floating_point or bool(torch.isfinite(t).all()))


# ---- outputs and the recipe ----


def _finished(random: Random, draft: _Draft) -> FuzzProgram:
    read = {n for s in draft.steps for n in s.reads}
    loose = [n for n in draft.values if n not in read] or list(draft.values)[-1:]
    last = list(draft.values)[-1]
    more = [n for n in loose if n != last and random.random() < 0.5]
    inner = [random.choice(list(draft.values))] if random.random() < 0.15 else []
    outputs = tuple(dict.fromkeys([last, *more, *inner][: random.randint(1, 4)]))
    if random.random() < 0.02:
        outputs = (*outputs, outputs[0])  # the same value twice
    program = replace(draft.program, steps=tuple(draft.steps), outputs=outputs)
    single = len(outputs) == 1 and random.random() < 0.7
    returns = "single" if single else _weighted(random, {"tuple": 5, "dict": 2, "nested": 1})
    keyword = len(program.inputs) > 1 and random.random() < 0.15
    batches = random.choice([1, 2, 3, 3, 3, 6])
    recipe = _recipe(random, program)
    return replace(pruned(program), returns=returns, by_keyword=keyword, batches=batches, recipe=recipe)


def pruned(program: FuzzProgram) -> FuzzProgram:
    """Only the steps that an output depends on, or whose weights are shared by such a step; all inputs."""
    needed, kept = set(program.outputs), []
    for step in reversed(program.steps):
        if step.name in {n.partition(".")[0] for n in needed}:
            needed |= set(step.reads)
            kept.append(step)
    names = {s.name for s in kept}
    steps = [replace(s, tied=s.tied if s.tied in names else None) for s in reversed(kept)]
    return replace(program, steps=tuple(steps))


def _recipe(random: Random, program: FuzzProgram) -> dict[str, Any]:
    """Mostly the defaults; what a target cannot do is refused, which is an outcome too."""
    recipe: dict[str, Any] = {}
    if program.target == "vulkan" or random.random() < 0.06:
        recipe["quantize"] = False
    if program.target == "vgf" and random.random() < 0.95:
        recipe["options"] = {"run_on": "reference-model", **({"numbers": "INT"} if random.random() < 0.2 else {})}
    if random.random() < 0.65:
        return recipe
    for key, value in _demands(random, program):
        if random.random() < 0.2 and (recipe.get("quantize", True) or key not in ("scopes", "inputs", "outputs")):
            recipe[key] = value
    return recipe


def _demands(random: Random, program: FuzzProgram) -> list[tuple[str, Any]]:
    ops = ["*", "conv*", "linear*", "add*", "cat*", "mul*", "softmax*"]
    scope = {"op": random.choice(ops), "precision": random.choice(["float", "int8", "int16"])}
    named = random.choice(["int8", "int16", "snorm8", "unorm8", "float"])
    return [
        ("scopes", [scope]),
        ("inputs", [named] * (len(program.inputs) if random.random() < 0.95 else 9)),
        ("outputs", [random.choice(["int8", "int16", "float"])] * len(program.outputs)),
        ("integer_io", False),
        ("channels_last", ["*"]),
        ("caller_owned_inputs", True),
        ("range", random.choice(["minmax", "percentile:99.9", "mse", "mse:4", "entropy"])),
        ("correct_biases", False),
        ("noise_vs_latency", random.choice([0.0, 0.5])),
        ("int4_sqnr_budget_db", 5.0),
        ("disabled_rewrites", []),
    ]
