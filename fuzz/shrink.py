"""Make a failing program smaller while it fails alike: fewer outputs, steps, batches and demands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fuzz.generate import pruned
from fuzz.net import FuzzNet, input_tensors, results_of, run_step
from fuzz.program import FuzzProgram, Input, Step


def shrink_program(program: FuzzProgram, fails: Callable[[FuzzProgram], bool], seconds: float) -> FuzzProgram:
    """The smallest that was found in that time."""
    end, found = time.monotonic() + seconds, True
    while found and time.monotonic() < end:
        found = False
        for smaller in smaller_programs(program):
            if time.monotonic() > end:
                break
            if fails(smaller):
                program, found = smaller, True
                break
    return program


def smaller_programs(program: FuzzProgram) -> Iterator[FuzzProgram]:
    for candidate in _candidates(program):
        smaller = without_unread_inputs(pruned(candidate))
        if smaller != program and smaller.inputs:
            yield smaller


def _candidates(program: FuzzProgram) -> Iterator[FuzzProgram]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield replace(program, outputs=(name,))
    values = _values(program)
    for step in program.steps:
        yield from _without(program, step, values)
    for step in reversed(program.steps[:-1]):
        yield replace(program, outputs=(step.name,), returns="tuple")
    yield replace(program, recipe={k: v for k, v in program.recipe.items() if k in ("quantize", "options")})
    for key in program.recipe:
        yield replace(program, recipe={k: v for k, v in program.recipe.items() if k != key})
    yield replace(program, batches=1)
    yield replace(program, returns="tuple", by_keyword=False)
    yield replace(program, steps=tuple(replace(s, tied=None) for s in program.steps))
    for name, spec in program.inputs.items():
        yield replace(program, inputs={**program.inputs, name: Input(spec.shape, spec.dtype)})


def _values(program: FuzzProgram) -> dict[str, Tensor]:
    net = FuzzNet(program)
    values = dict(zip(program.inputs, input_tensors(program, 0), strict=True))
    with torch.no_grad():
        for step in program.steps:
            layer = net.layers[step.name]
            values |= results_of(step, run_step(step, [values[n].clone() for n in step.reads], layer.named()))
    return values


def _without(program: FuzzProgram, step: Step, values: dict[str, Tensor]) -> Iterator[FuzzProgram]:
    """Its readers read one of its operands, or a new input of the same form."""
    made = [n for n in values if n.partition(".")[0] == step.name]
    for other in step.reads:
        if all(_alike(values[n], values[other]) for n in made):
            yield _renamed(program, step, dict.fromkeys(made, other))
    inputs = {f"i{90 + int(step.name[1:])}{i}": values[n] for i, n in enumerate(made)}
    if all(t.dtype in (torch.float32, torch.int64, torch.bool) for t in inputs.values()):
        new = {k: Input(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for k, t in inputs.items()}
        added = replace(program, inputs={**program.inputs, **new})
        yield _renamed(added, step, dict(zip(made, inputs, strict=True)))


def _alike(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype


def _renamed(program: FuzzProgram, step: Step, names: dict[str, str]) -> FuzzProgram:
    steps = [
        replace(s, reads=tuple(names.get(n, n) for n in s.reads), tied=None if s.tied == step.name else s.tied)
        for s in program.steps
        if s is not step
    ]
    return replace(program, steps=tuple(steps), outputs=tuple(names.get(n, n) for n in program.outputs))


def without_unread_inputs(program: FuzzProgram) -> FuzzProgram:
    read = {n for s in program.steps for n in s.reads} | set(program.outputs)
    kept = {k: v for k, v in program.inputs.items() if k in read}
    recipe = {k: v for k, v in program.recipe.items() if k != "inputs" or len(kept) == len(program.inputs)}
    return replace(program, inputs=kept, recipe=recipe, by_keyword=program.by_keyword and len(kept) > 1)
