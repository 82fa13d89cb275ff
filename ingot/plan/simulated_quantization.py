"""Simulated quantization: a plan runs in float, with a fake quantizer at every quantization point."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.op_semantics.weighted_ops import is_random
from ingot.core.fx import constant_of
from ingot.plan.bias_correction import ChannelMeans, apply_correction, bias_correction, channel_means, has_bias
from ingot.plan.compared_parts import ComparedParts
from ingot.plan.noise_model import TOKEN_SCALE_FLOOR
from ingot.plan.plan_data import Plan, QParams
from ingot.plan.rounded_weights import rounded_weight

SampleBatch = tuple[Any, ...]


def can_simulate(module: GraphModule, batches: Sequence[SampleBatch]) -> bool:
    """There are batches, and no op is random: else two runs could not be compared."""
    return bool(batches) and not any(map(is_random, module.graph.nodes))


@dataclass
class Simulation:
    """A program and batches on which plans are simulated, with the results of the float program."""

    module: GraphModule
    batches: Sequence[SampleBatch]
    float_means: ChannelMeans = field(default_factory=dict)
    float_results: list[list[Tensor]] = field(default_factory=list)  # by batch: the parts that are compared
    constants: dict[Any, Tensor] = field(default_factory=dict)  # quantized once for all plans

    @classmethod
    def of(cls, module: GraphModule, batches: Sequence[SampleBatch]) -> Simulation:
        simulation = cls(module, batches)
        runs = [_FloatRun(module, simulation.float_means, simulation.parts.deciding) for _ in batches]
        simulation.float_results = [
            simulation.compared(run.run(*batch), run.decided) for run, batch in zip(runs, batches, strict=True)
        ]
        return simulation

    @cached_property
    def parts(self) -> ComparedParts:
        return ComparedParts.of(self.module)

    def compared(self, result: Any, decided: Mapping[Node, Tensor]) -> list[Tensor]:
        return [*self.parts.split(_tensors(result)), *(decided[n] for n in self.parts.deciding)]

    def run(self, plan: Plan, correct_biases: bool) -> tuple[list[list[Tensor]], ChannelMeans]:
        """The results by batch, and the bias corrections. Each layer reads results that are already corrected."""
        decided: list[dict[Node, Tensor]] = [{} for _ in self.batches]
        runs = [_SimulatedRun(self.module, plan, self.constants, batch) for batch in self.batches]
        corrections: ChannelMeans = {}
        for node in self.module.graph.nodes:
            results = [run.compute(node) for run in runs]
            if correct_biases and node.name in self.float_means and plan.qparams(node.name, 1) is not None:
                actual = torch.cat([channel_means(node, y) for y in results])
                correction = corrections[node.name] = bias_correction(self.float_means[node.name], actual)
                results = [apply_correction(node, y, correction) for y in results]
            for run, y, kept in zip(runs, results, decided, strict=True):
                stored = run.set_result(node, y)
                if node in self.parts.deciding:
                    kept[node] = stored
        return [self.compared(run.result, kept) for run, kept in zip(runs, decided, strict=True)], corrections


def simulate_plan(
    module: GraphModule, plan: Plan, batch: SampleBatch, constants: dict[Any, Tensor] | None = None
) -> list[Tensor]:
    """All output tensors of a plan on one batch, with its bias corrections."""
    run = _SimulatedRun(module, plan, {} if constants is None else constants, batch)
    for node in module.graph.nodes:
        y = run.compute(node)
        if (correction := plan.bias_corrections.get(node.name)) is not None:
            y = apply_correction(node, y, torch.tensor(correction))
        run.set_result(node, y)
    return _tensors(run.result)


class _FloatRun(Interpreter):
    """The float program; collects the channel means of all ops with a bias."""

    def __init__(self, module: GraphModule, means: ChannelMeans, deciding: Collection[Node]) -> None:
        super().__init__(module)
        self.means, self.deciding, self.decided = means, deciding, dict[Node, Tensor]()

    def run_node(self, n: Node) -> Any:
        y = super().run_node(n)
        if n in self.deciding:
            self.decided[n] = y
        if has_bias(n):
            found = channel_means(n, y)
            self.means[n.name] = torch.cat([self.means[n.name], found]) if n.name in self.means else found
        return y


class _SimulatedRun(Interpreter):
    """The program on one batch, one node at a time, with fake quantizers at the points of the plan."""

    def __init__(self, module: GraphModule, plan: Plan, constants: dict[Any, Tensor], batch: SampleBatch) -> None:
        super().__init__(module)
        self.plan, self.constants, self.args_iter = plan, constants, iter(batch)
        self.result: Any = None
        self.dynamic = frozenset(plan.dynamic)

    def compute(self, n: Node) -> Any:
        """The result of a node before its output is quantized."""
        positions = count()
        args, kwargs = (torch.fx.map_arg(a, lambda s: self._read(n, s, next(positions))) for a in (n.args, n.kwargs))
        return getattr(self, n.op)(n.target, args, kwargs)

    def set_result(self, n: Node, y: Any) -> Any:
        """Quantize the result, keep it for the consumers, and release what nobody reads any more."""
        qparams = self.plan.qparams(n.name)
        self.result = self.env[n] = y if qparams is None else fake_quantize(y, qparams)
        for dead in self.user_to_last_uses.get(n, []):
            del self.env[dead]
        return self.result

    def _read(self, n: Node, source: Node, operand: int) -> Any:
        if operand == 0 and n.name in self.dynamic:
            return fake_quantize_per_token(self.env[source])
        qparams = self.plan.qparams(n.name, operand)
        if qparams is None or qparams.dtype == "int32" or qparams == self.plan.qparams(source.name):
            return self.env[source]  # the error of an int32 bias is negligible
        if constant_of(source) is None:
            return fake_quantize(self.env[source], qparams)
        codes = self.plan.rounded_weights.get(n.name, "") if operand == 1 else ""
        key = (source.target, qparams, codes)
        if key not in self.constants:
            rounded = rounded_weight(codes, self.env[source], qparams, n.name) if codes else self.env[source]
            self.constants[key] = fake_quantize(rounded, qparams)
        return self.constants[key]


def fake_quantize(x: Tensor, s: QParams) -> Tensor:
    """Quantize and dequantize."""
    if x.dtype is not torch.float32:
        return fake_quantize(x.float(), s).to(x.dtype)
    if s.axis is None:
        return torch.fake_quantize_per_tensor_affine(x, s.scale, s.zero_point, s.qmin, s.qmax)  # type: ignore[arg-type]
    scale, zero = torch.tensor(s.scale), torch.tensor(s.zero_point, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scale, zero, s.axis, s.qmin, s.qmax)


def fake_quantize_per_token(x: Tensor) -> Tensor:
    """int8 with a scale and a zero point for each row of the last axis, as kernels choose them at run time."""
    low, high = x.amin(-1, keepdim=True).clamp_max(0), x.amax(-1, keepdim=True).clamp_min(0)
    scale = ((high - low) / 255).clamp_min(TOKEN_SCALE_FLOOR)
    zero = (-128 - (low / scale).round()).clamp(-128, 127)
    return (((x / scale).round() + zero).clamp(-128, 127) - zero) * scale


def _tensors(outputs: Any) -> list[Tensor]:
    return [o for o in torch.utils._pytree.tree_leaves(outputs) if isinstance(o, Tensor)]
