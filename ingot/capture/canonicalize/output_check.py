"""Outputs before and after a rewrite: equal up to the rounding errors that the program itself has in float32.

How much of these errors reaches an output depends on the program: deep nets lose a bit or two, a chain of badly scaled
batch norms ten. So the program is run once more with each value rounded at random (Monte Carlo arithmetic); what that
changes is the noise that a rewrite may add too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from ingot.core.run_batched import has_mutating_op, run_batched
from ingot.errors import CaptureError

Outputs = list[torch.Tensor]
Inputs = tuple[torch.Tensor, ...]

# Batch norm folding rounds. 80 dB is a relative error of 10^-4.
MIN_SQNR_DB = 80.0
# Long sums and folded weights round more than once for each value: up to 11 dB above the noise were measured.
NOISE_MARGIN_DB = 20.0
# However noisy the program is: below, a wrong rewrite could pass as noise.
MIN_NOISY_SQNR_DB = 30.0
SILENT = 1e-12


@dataclass(frozen=True, eq=False)
class ExpectedOutputs:
    """What a program gives, before it is rewritten."""

    module: GraphModule
    inputs: Inputs
    outputs: Outputs

    @cached_property
    def noise(self) -> list[float]:
        """By output: the energy of the difference that rounding makes.

        Run again without it: a rewrite that writes into the weights changes the program here too, and is no noise.
        """
        plain = run_outputs(self.module, self.inputs)
        rounded = _tensors(_run_and_restore(_RoundedAtRandom(self.module), self.module, self.inputs))
        return [_energy(b, a) for b, a in zip(plain, rounded, strict=True)]

    def check(self, name: str, after: Outputs) -> None:
        """Raise if the rewrite `name` changed an output."""
        for i, (b, a) in enumerate(zip(self.outputs, after, strict=True)):
            if not _comparable(b, a) or not self._same(i, b, a):
                raise CaptureError(
                    f"rewrite '{name}' changed output {i}",
                    why="a rewrite must preserve the values",
                    hint="please report this model: it is a bug in Ingot",
                )

    def _same(self, i: int, before: torch.Tensor, after: torch.Tensor) -> bool:
        if not before.dtype.is_floating_point:
            return torch.equal(before, after)
        error, signal = _energy(before, after), _energy(before, torch.zeros_like(before))
        if error <= _part(signal, MIN_SQNR_DB) + SILENT:
            return True
        return error <= _part(signal, MIN_NOISY_SQNR_DB) and error <= _part(self.noise[i], -NOISE_MARGIN_DB)


def expected_outputs(module: GraphModule, inputs: Inputs) -> ExpectedOutputs:
    """The outputs of `module` for `inputs`. The caller keeps `module` as it is."""
    return ExpectedOutputs(module, inputs, run_outputs(module, inputs))


def run_outputs(module: GraphModule, inputs: Inputs) -> Outputs:
    """The output tensors for `inputs`, interpreted node by node: no code generation."""
    if has_mutating_op(module):
        return _tensors(_run_and_restore(Interpreter(module), module, inputs))
    return _tensors(run_batched(module, [inputs])[0])


def _tensors(out: Any) -> Outputs:
    return [o for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]


class _RoundedAtRandom(Interpreter):
    """Each float value has a random error of at most half a unit in the last place."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.generator = torch.Generator().manual_seed(0)

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        written = isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable
        return value if written or n.op != "call_function" else torch.utils._pytree.tree_map(self._rounded, value)

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        half = torch.finfo(value.dtype).eps / 2
        error = torch.rand(value.shape, generator=self.generator).mul_(2 * half).sub_(half)
        made = torch.addcmul(value, value, error.to(value.dtype))
        return torch.where(torch.isfinite(made), made, value)  # the lowest float, as masks have it, has no next one


def _run_and_restore(interpreter: Interpreter, module: GraphModule, inputs: Inputs) -> Any:
    """Run, then restore the buffers that the program writes."""
    state = {k: v.clone() for k, v in module.named_buffers() if _is_written(module, k)}
    with torch.no_grad():
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        out = interpreter.run(*given)
        for k, v in state.items():
            module.get_buffer(k).copy_(v)
    return out


def _is_written(module: GraphModule, name: str) -> bool:
    copies = [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]
    return any(getattr(n.args[0], "target", None) == name for n in copies)


def _comparable(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Of one shape and dtype, and finite in the same places."""
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    return not before.is_floating_point() or torch.equal(torch.isfinite(before), torch.isfinite(after))


def _part(energy: float, db: float) -> float:
    return energy * 10 ** (-db / 10)


def _energy(before: torch.Tensor, after: torch.Tensor) -> float:
    """Of the difference, where `before` is finite."""
    if not before.is_floating_point():
        return 0.0
    finite = torch.isfinite(before)
    difference = before.detach()[finite].double() - after.detach()[finite].double()
    return float(difference.square().sum())
