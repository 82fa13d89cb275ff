"""Channel factors leave the results of a program as they are, whatever the factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot.core.channel_factors import ChannelFactors
from ingot.rewrite.channel_factors import product_readers, scaled_module, with_channel_factors, writes_channels
from ingot.rewrite.scalable_channels import output_width, scalable_channels


class Inverted(nn.Module):
    """Convolutions with groups and depthwise ones, a residual add, a pool, a flatten, linears."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act
        self.stem, self.wide, self.deep = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.narrow, self.grouped = nn.Conv2d(16, 8, 1, bias=False), nn.Conv2d(8, 12, 3, groups=4)
        self.up, self.head, self.last = nn.ConvTranspose2d(12, 6, 2, 2), nn.Linear(6 * 36, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = x + self.narrow(self.act(self.deep(self.act(self.wide(x)))))
        x = F.max_pool2d(self.act(self.up(self.act(self.grouped(x)))), 2)
        return self.last(F.leaky_relu(self.head(x.flatten(1))))


class Joined(nn.Module):
    """Channels that are concatenated, cut, shuffled and gated before the next weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.gate = (nn.Conv2d(3, n, 1) for n in (4, 6, 10, 10))
        self.out = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.a(x).relu(), self.b(x).relu()], 1) + self.c(x)
        y = y.reshape(-1, 2, 5, *x.shape[2:]).transpose(1, 2).flatten(1, 2)
        return self.out((y * torch.sigmoid(self.gate(x)))[:, 1:9])


class Norms(nn.Module):
    """A pre-norm and a post-norm block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 24), nn.Linear(24, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(x + self.down(torch.relu(self.up(self.first(x)))))
        return self.head(x) + x.mean(-1, keepdim=True)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: Inverted(torch.relu), (1, 3, 10, 10)),
    "prelu": (lambda: Inverted(nn.PReLU(1)), (1, 3, 10, 10)),
    "joined": (Joined, (2, 3, 5, 5)),
    "norms": (Norms, (2, 4, 8)),
}


def form_of(name: str, seed: int) -> tuple[ingot.Program, Tensor]:
    """Rewritten for XNNPACK: its norms are products."""
    from ingot.config.recipe import Recipe
    from ingot.rewrite.apply import rewrite_for
    from ingot.targets.registry import find_target

    torch.manual_seed(seed)
    make, shape = NETS[name]
    x = torch.randn(*shape)
    return rewrite_for(ingot.capture(make().eval(), (x,)), find_target("xnnpack"), Recipe()).program, x


def random_factors(program: ingot.Program) -> ChannelFactors:
    """On every channel that may have one, before all weights, and after them."""
    found = scalable_channels(program.module)
    roots, free = found.roots()
    each = torch.where(free, (torch.randn(len(roots)) * 2).exp()[roots], 1.0)
    nodes = list(program.module.graph.nodes)
    readers = {n.name: product_readers(n) for n in nodes}
    return ChannelFactors(
        {n.name: _tuple(each[c]) for n, c in found.writers.items()},
        {name: _random(r[0].args[1].meta["val"].shape[1]) for name, r in readers.items() if r and _plain(r[0])},
        {n.name: _random(output_width(n)) for n in nodes if writes_channels(n)},
    )


def _plain(node: Any) -> bool:
    return node.target is torch.ops.aten.linear.default


def _random(count: int) -> tuple[float, ...]:
    return _tuple((torch.randn(count) * 2).exp())


def _tuple(x: Tensor) -> tuple[float, ...]:
    return tuple(x.float().tolist())


@pytest.mark.parametrize("name", NETS)
def test_results_stay_equal_for_random_factors(name: str) -> None:
    for seed in range(3):
        program, x = form_of(name, seed)
        factors = random_factors(program)
        changed = scaled_module(program.module, factors)
        want, got = (torch.utils._pytree.tree_leaves(m(x))[0] for m in (program.module, changed))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))
        assert any(f != 1 for given in factors.constants.values() for f in given)


def test_scalable_are_what_weights_write_and_weights_read() -> None:
    """All but what is an output, and what meets it in an add; a residual sum is one value with one set of factors."""
    program, _ = form_of("relu", 0)
    found = scalable_channels(program.module)
    roots, free = found.roots()
    by_name = {n.name: (roots[c], bool(free[c].all())) for n, c in found.writers.items()}
    assert [name for name, (_, is_free) in by_name.items() if not is_free] == ["linear_1"]
    assert torch.equal(by_name["conv2d"][0], by_name["conv2d_3"][0])  # stem and projection meet in the add
    assert len(found.readers) == 7


def test_values_of_a_scaled_program_have_names_of_their_own() -> None:
    """Else statistics of the unscaled values would be taken for theirs."""
    program, _ = form_of("relu", 0)
    some, other = (scaled_module(program.module, ChannelFactors({"conv2d_1": (f,) * 16})) for f in (2.0, 4.0))
    names = [{n.meta.get("ingot_value", n.name) for n in m.graph.nodes} for m in (program.module, some, other)]
    assert names[0] - names[1]
    assert names[1] - names[2]


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        (ChannelFactors({"conv2d_9": (1.0,)}), "writes no channels"),
        (ChannelFactors({"conv2d_1": (1.0,) * 3}), "it needs 16 above zero"),
        (ChannelFactors({"conv2d_1": (0.0,) * 16}), "it needs 16 above zero"),
        (ChannelFactors({"conv2d_1": (float("nan"),) * 16}), "it needs 16 above zero"),
        (ChannelFactors({"linear_1": (2.0,) * 4}), "cannot be scaled"),
        (ChannelFactors({"conv2d": (2.0,) * 8, "conv2d_3": (3.0,) * 8}), "must have the same factors"),
        (ChannelFactors(inputs={"relu": (2.0,)}), "it needs 8 above zero"),
        (ChannelFactors(inputs={"nothing": (2.0,)}), "no weight reads 'nothing'"),
        (ChannelFactors(results={"relu": (2.0,)}), "writes no channels"),
    ],
)
def test_edited_factors_are_checked(factors: ChannelFactors, says: str) -> None:
    program, _ = form_of("relu", 0)
    with pytest.raises(ingot.PlanError, match=says):
        with_channel_factors(program, factors)


def test_no_factors_no_copy() -> None:
    program, _ = form_of("norms", 0)
    assert with_channel_factors(program, ChannelFactors()) is program


def test_tied_weights_are_left_as_they_are() -> None:
    """Under one name or under two: with factors they would be stored twice."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x)))))))

    found = scalable_channels(ingot.capture(Tied(), (torch.randn(2, 6),)).module)
    assert not found.writers
    assert not found.readers


def test_programs_of_any_batch_size() -> None:
    net = Inverted(torch.relu).eval()
    x = torch.randn(4, 3, 10, 10)
    program = ingot.capture(net, (x,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=1, max=16)}})
    changed = scaled_module(program.module, random_factors(program))
    for size in (4, 2):
        want, got = (torch.utils._pytree.tree_leaves(m(x[:size]))[0] for m in (program.module, changed))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))
