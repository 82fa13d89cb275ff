"""Rewrites are compared up to the float noise of the program itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import GraphModule

import ingot
from ingot.capture.canonicalize.output_check import expected_outputs, run_outputs
from ingot.core.fx import copy_graph_module
from ingot.errors import CaptureError


class Amplifier(nn.Module):
    """sin(gain * x), again and again: each layer multiplies the rounding errors of those before by `gain`."""

    def __init__(self, layers: int, gain: float):
        super().__init__()
        self.layers, self.gain = layers, gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.layers):
            x = (x * self.gain).sin()
        return x


class Masked(Amplifier):
    """Scores behind a mask of the lowest float, which rounds to -inf."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.arange(len(x)) % 7 == 0
        return super().forward(x.masked_fill(hidden, torch.finfo(x.dtype).min).softmax(0) * len(x))


def graph_of(net: nn.Module, x: torch.Tensor) -> GraphModule:
    return torch.export.export(net.eval(), (x,)).module(check_guards=False)


def equivalent(module: GraphModule) -> GraphModule:
    """mul(x, g) -> mul(mul(x, g / 3), 3): right, and rounded in another way."""
    changed = copy_graph_module(module)
    for node in list(changed.graph.nodes):
        if node.target is torch.ops.aten.mul.Tensor:
            with changed.graph.inserting_after(node):
                again = changed.graph.call_function(node.target, (node, 3.0))
            node.replace_all_uses_with(again, delete_user_cb=lambda user, again=again: user is not again)
            node.args = (node.args[0], node.args[1] / 3.0)
    changed.recompile()
    return changed


def wrong(module: GraphModule, relative: float) -> GraphModule:
    """The first factor is off by `relative`."""
    changed = copy_graph_module(module)
    node = next(n for n in changed.graph.nodes if n.target is torch.ops.aten.mul.Tensor)
    node.args = (node.args[0], node.args[1] * (1 + relative))
    changed.recompile()
    return changed


def test_the_lowest_float_is_no_noise() -> None:
    """Rounded up it would be infinite, and the noise of the program no number."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    module = graph_of(Masked(8, 5.0), x)
    expected_outputs(module, (x,)).check("other rounding", run_outputs(equivalent(module), (x,)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.floats(1.0, 5.0), st.integers(0, 10**6))
def test_an_equivalent_program_passes_however_much_it_amplifies_rounding(layers: int, gain: float, seed: int) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    module = graph_of(Amplifier(layers, gain), x)
    expected_outputs(module, (x,)).check("equivalent", run_outputs(equivalent(module), (x,)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.floats(1.0, 5.0), st.integers(0, 10**6))
def test_an_error_of_a_thousandth_is_found_in_the_same_programs(layers: int, gain: float, seed: int) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    module = graph_of(Amplifier(layers, gain), x)
    with pytest.raises(CaptureError, match="changed output 0"):
        expected_outputs(module, (x,)).check("wrong", run_outputs(wrong(module, 1e-3), (x,)))


def test_the_noise_of_the_amplifier_is_above_the_plain_threshold() -> None:
    """Otherwise the two tests above would hold without a measurement of noise."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    module = graph_of(Amplifier(8, 4.0), x)
    expected = expected_outputs(module, (x,))
    assert expected.noise[0] > 1e-8 * float(expected.outputs[0].square().sum())


def test_a_rewrite_that_writes_into_shared_weights_is_no_noise() -> None:
    x = torch.randn(2, 8)
    module = graph_of(nn.Linear(8, 8), x)
    expected = expected_outputs(module, (x,))
    with torch.no_grad():
        next(iter(module.parameters())).mul_(1.01)
    with pytest.raises(CaptureError):
        expected.check("writes", run_outputs(module, (x,)))


def test_a_net_whose_float_noise_is_large_is_captured() -> None:
    """Convolutions and batch norms whose statistics are far from the activations, as in random ConvMixers."""
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(8) for m in (nn.Conv2d(8, 8, 3, padding=1), Sharp(8), Wave())]).eval()
    ingot.capture(net, (torch.randn(1, 8, 12, 12),))


class Sharp(nn.BatchNorm2d):
    def __init__(self, channels: int):
        super().__init__(channels)
        assert self.running_var is not None
        self.running_var.fill_(0.02)


class Wave(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()
