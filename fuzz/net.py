"""The model of a random program, and its batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fuzz import ops_forms, ops_shapes, ops_weights  # noqa: F401  fill the table
from fuzz.ops import OPS
from fuzz.program import FuzzProgram, Input, Shape, Step

Watch = Callable[[str, Tensor], Tensor]  # sees each value by name and may change it


class FuzzNet(nn.Module):
    """Interprets a program. `watch` is for judges that disturb values; a cast never sets it."""

    def __init__(self, program: FuzzProgram) -> None:
        super().__init__()
        self.program, self.watch = program, None
        self.layers = nn.ModuleDict()
        values = dict(zip(program.inputs, input_tensors(program, 0), strict=True))
        with torch.no_grad():
            for number, step in enumerate(program.steps):
                operands = [values[n] for n in step.reads]
                self.layers[step.name] = self._layer(step, [tuple(x.shape) for x in operands], number)
                values |= results_of(step, run_step(step, operands, self.layers[step.name].named()))
        for layer in self.layers.values():
            layer.reset()

    def _layer(self, step: Step, shapes: list[Shape], number: int) -> Weights:
        if step.tied is not None and step.tied in self.layers:
            return self.layers[step.tied]  # type: ignore[return-value]
        seed = 1000 * self.program.seed + int(step.name[1:])
        return Weights(made_weights(step, shapes, seed))

    def forward(self, *args: Tensor, last: Tensor | None = None) -> Any:
        given = [*args, last] if last is not None else list(args)
        values = self._watched(dict(zip(self.program.inputs, given, strict=True)))
        for step in self.program.steps:
            made = run_step(step, [values[n] for n in step.reads], self.layers[step.name].named())
            values |= self._watched(results_of(step, made))
        return _returned(self.program.returns, [values[n] for n in self.program.outputs])

    def _watched(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: self.watch(n, t) for n, t in values.items()} if self.watch else values


def _returned(how: str, outputs: list[Tensor]) -> Any:
    if how == "single" and len(outputs) == 1:
        return outputs[0]
    if how == "dict":
        return {f"o{i}": t for i, t in enumerate(outputs)}
    return {"first": outputs[0], "rest": tuple(outputs[1:])} if how == "nested" else tuple(outputs)


def run_step(step: Step, operands: list[Tensor], weights: dict[str, Tensor]) -> Any:
    return OPS[step.op].run(*operands, w=weights, **step.attributes)


def results_of(step: Step, made: Any) -> dict[str, Tensor]:
    """The results of a step by name; a list of tensors gives several."""
    if isinstance(made, Tensor):
        return {step.name: made}
    return {f"{step.name}.{i}" if i else step.name: t for i, t in enumerate(made)}


class Weights(nn.Module):
    """The weights of one step: parameters, and a buffer for state."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(values)
        for name, value in values.items():
            if name in ("state", "mean", "var"):
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))

    def named(self) -> dict[str, Tensor]:
        return {n: getattr(self, n) for n in self.names}

    def reset(self) -> None:
        if "state" in self.names:
            self.state.zero_()


def made_weights(step: Step, shapes: list[Shape], seed: int) -> dict[str, Tensor]:
    """Numbers that keep the scale of what they multiply."""
    asked = OPS[step.op].weights
    generator = torch.Generator().manual_seed(seed)
    found = asked(shapes, step.attributes) if asked else {}
    return {name: _made(name, shape, generator) for name, shape in found.items()}


def _made(name: str, shape: Shape, generator: torch.Generator) -> Tensor:
    if name == "state":
        return torch.zeros(shape)
    if name in ("gain", "var"):
        return 0.5 + torch.rand(shape, generator=generator)
    spread = 1 / math.sqrt(max(1, math.prod(shape[1:]))) if "weight" in name else 0.2
    return torch.randn(shape, generator=generator) * spread


# ---- batches ----


def input_tensors(program: FuzzProgram, number: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7919 * program.seed + number)
    return tuple(_values(spec, number, generator) for spec in program.inputs.values())


def _values(spec: Input, number: int, generator: torch.Generator) -> Tensor:
    if spec.dtype == "bool":
        return torch.rand(spec.shape, generator=generator) > 0.5
    if spec.dtype.startswith("int"):
        return torch.randint(0, 5, spec.shape, generator=generator).to(getattr(torch, spec.dtype))
    x = DISTRIBUTIONS[spec.values](torch.randn(spec.shape, generator=generator), number)
    return _laid_out(x.to(getattr(torch, spec.dtype)), spec.layout)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "channels_last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return x


def _outliers(x: Tensor, number: int) -> Tensor:
    return torch.where(x.abs() > 2.2, x * 50, x)


DISTRIBUTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "normal": lambda x, n: x,
    "uniform": lambda x, n: x.sigmoid(),
    "constant": lambda x, n: torch.full_like(x, 0.75),
    "zeros": lambda x, n: torch.zeros_like(x),
    "sparse": lambda x, n: torch.where(x > 1.5, x, 0.0),
    "huge": lambda x, n: x * 1e4,
    "tiny": lambda x, n: x * 1e-4,
    "outliers": _outliers,
    "positive": lambda x, n: x.abs() + 3,
    "growing": lambda x, n: x * 10.0**n,
    "binary": lambda x, n: (x > 0).to(x.dtype),
}


def call_arguments(program: FuzzProgram, number: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    given = input_tensors(program, number)
    return (given[:-1], {"last": given[-1]}) if program.by_keyword else (given, {})
