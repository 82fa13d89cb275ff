"""Canonical form: what each pass ensures, on graphs that need the pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import ingot
from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import calls, constant_of


def program_of(forward: Any, *inputs: torch.Tensor, module: nn.Module | None = None, **options: Any) -> ingot.Program:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any) -> Any:
            return forward(*args) if module is None else forward(self.inner, *args)

    return ingot.capture(Model().eval(), inputs, **options)


def ops(program: ingot.Program) -> list[str]:
    return [str(n.target).removeprefix("aten.") for n in calls(program.module)]


X = torch.randn(2, 6, 4)

ALIASES = {
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(1, 2),
    "movedim": lambda x: x.movedim(1, 2),
    "moveaxis": lambda x: torch.moveaxis(x, -1, 1),
    "permute": lambda x: x.permute(0, 2, 1),
}
SLICES = {
    "narrow": lambda x: x.narrow(1, 1, 3),
    "slice": lambda x: x[:, 1:4],
    "tensor_split": lambda x: x.tensor_split((1, 4), 1)[1],
    "split": lambda x: x.split([1, 3, 2], 1)[1],
}
RESHAPES = {
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "view": lambda x: x.view(2, 2, 3, 4),
    "unsqueeze, reshape": lambda x: x[:, None].reshape(2, 2, 3, 4),
}


@pytest.mark.parametrize(("family", "one"), [(ALIASES, "permute"), (SLICES, "slice"), (RESHAPES, "reshape")])
def test_aliases_are_one_operation(family: Any, one: str) -> None:
    forms = {name: [(n.target, n.args[1:]) for n in calls(program_of(f, X).module)] for name, f in family.items()}
    first = next(iter(forms.values()))
    assert len(first) == 1
    assert one in str(first[0][0])
    assert all(form == first for form in forms.values()), forms


@pytest.mark.parametrize(
    "noop",
    [
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x.contiguous(),
        lambda x: x.clone(),
        lambda x: x.expand_as(x),
        lambda x: x.to(torch.float32),
        lambda x: x[:, :],
        lambda x: x.reshape(2, 24).reshape(2, 6, 4),
        lambda x: torch.broadcast_to(x, (2, 6, 4)),
    ],
)
def test_identities_are_removed(noop: Any) -> None:
    assert ops(program_of(lambda x: noop(x) * 2, X)) == ["mul.Tensor"]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(-2, 3), min_size=2, max_size=6), st.sampled_from([0.0, -7.5]))
def test_a_negative_pad_is_a_slice(amounts: list[int], value: float) -> None:
    amounts, x = amounts[: len(amounts) // 2 * 2], torch.randn(5, 6, 5)
    program = program_of(lambda x: F.pad(x, amounts, value=value) * 2, x)
    torch.testing.assert_close(program.module(x)[0], F.pad(x, amounts, value=value) * 2)
    pads: Any = [n.args[1] for n in calls(program.module) if "constant_pad_nd" in str(n.target)]
    assert all(min(p) >= 0 for p in pads), pads


def _assigned(x: torch.Tensor, value: Any) -> torch.Tensor:
    out = x.clone()
    out[..., :1] = value
    out[0, 1] = value
    return out


@pytest.mark.parametrize("value", [0.5, torch.tensor(2.0), torch.arange(4.0)[:1]])
def test_a_constant_that_is_assigned(value: Any) -> None:
    program = program_of(lambda x: _assigned(x, value) * 2, X)
    torch.testing.assert_close(program.module(X)[0], _assigned(X, value) * 2)
    assert not [op for op in ops(program) if op.startswith("copy.")]


@pytest.mark.parametrize("alpha", [2.5, -1.0, 0.0])
@pytest.mark.parametrize("op", [torch.add, torch.sub])
def test_a_factor_in_a_sum_is_a_product(op: Any, alpha: float) -> None:
    y = torch.randn(4)
    program = program_of(lambda x: op(x, x.mean(1, keepdim=True) + y, alpha=alpha), X)
    torch.testing.assert_close(program.module(X)[0], op(X, X.mean(1, keepdim=True) + y, alpha=alpha))
    assert not any("alpha" in n.kwargs for n in calls(program.module))


def test_what_absorbs_all_but_infinities_is_no_constant() -> None:
    lowest = torch.finfo(torch.float32).min
    assert program_of(lambda x: (x + lowest) * 0.5, X).module(torch.full_like(X, torch.inf))[0].isinf().all()


@pytest.mark.parametrize("bounding", [lambda x: x.clamp(min=torch.finfo(torch.float32).min), torch.nan_to_num])
def test_what_changes_infinities_only_is_no_identity(bounding: Any) -> None:
    infinite = torch.full_like(X, -torch.inf)
    assert torch.isfinite(program_of(lambda x: bounding(x) * 0.5, X).module(infinite)[0]).all()


def test_roll_is_a_cat_of_two_slices() -> None:
    forward = lambda x: torch.roll(x, 2, 1)
    program = program_of(forward, X)
    assert ops(program) == ["slice.Tensor", "slice.Tensor", "cat.default"]
    assert torch.equal(program.module(X)[0], forward(X))


def test_channels_last_conversion_is_removed() -> None:
    x = torch.randn(1, 3, 4, 4)
    assert ops(program_of(lambda x: x.to(memory_format=torch.channels_last) * 2, x)) == ["mul.Tensor"]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.full((2, 6, 4), 0.5, dtype=x.dtype),
        lambda x: torch.zeros(2, 6, 4) + torch.ones(4),
        lambda x: torch.full_like(x, 3.0),
        lambda x: torch.arange(4.0).repeat(2, 6, 1),
        lambda x: torch.empty(2, 6, 4).fill_(2.0),
        lambda x: torch.scalar_tensor(0.25),
        lambda x: x.new_full((4,), 1.5),
    ],
)
def test_factories_are_constants(make: Any) -> None:
    program = program_of(lambda x: x + make(x), X)
    assert ops(program) == ["add.Tensor"]
    (added,) = calls(program.module)
    assert constant_of(added.all_input_nodes[1]) is not None


def test_a_returned_factory_survives() -> None:
    program = program_of(lambda x: (x * 2, torch.full((2,), 7.0)), X)
    assert torch.equal(program.module(X)[1], torch.full((2,), 7.0))


def test_slice_assignment_is_functional() -> None:
    def forward(x: Any) -> Any:
        z = torch.zeros(2, 6, 4)
        z[:, 2:4] = x[:, :2]
        z[0] += 1
        return z

    program = program_of(forward, X)
    assert not [o for o in ops(program) if o.split(".")[0].endswith("_")]
    assert torch.equal(program.module(X)[0], forward(X))


def test_no_grad_is_inlined() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        @torch.no_grad()
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                return self.lin(x).relu()

    assert ops(ingot.capture(Frozen().eval(), (X,))) == ["linear.default", "relu.default"]


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8)),
        nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2, groups=2), nn.BatchNorm2d(8)),
        nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2, bias=False), nn.BatchNorm2d(6, affine=False)),
        nn.Sequential(nn.Conv2d(4, 4, 1, groups=4), nn.BatchNorm2d(4)),
        nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)),
    ],
    ids=["grouped", "transposed grouped", "transposed", "depthwise", "before"],
)
def test_batch_norm_is_folded_exactly(net: nn.Module) -> None:
    x = torch.randn(2, 4, 6, 6) * 3 + 1
    net.train()(x)
    program = ingot.capture(net.eval(), (x,))
    assert not [o for o in ops(program) if "norm" in o]
    torch.testing.assert_close(program.module(x)[0], net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_parametrisations_are_folded(norm: Any) -> None:
    assert ops(ingot.capture(norm(nn.Linear(4, 4)).eval(), (X,))) == ["linear.default"]


def test_one_constant_per_use() -> None:
    lin = nn.Linear(4, 4)
    program = program_of(lambda f, x: f(f(x)), X, module=lin)
    targets = [n.target for n in program.module.graph.nodes if n.op == "get_attr"]
    assert len(targets) == len(set(targets)) == 4


@pytest.mark.parametrize("layer", [nn.GRU(4, 5, batch_first=True), nn.LSTM(4, 5, batch_first=True)])
def test_recurrent_layers_show_their_linears(layer: nn.Module) -> None:
    program = program_of(lambda f, x: f(x)[0], X, module=layer)
    assert sum("linear" in o for o in ops(program)) >= 6
    assert not [o for o in ops(program) if o.startswith(("gru", "lstm"))]


def test_integer_ops_are_unchanged() -> None:
    program = program_of(lambda i, x: x[:, (i + 3) % 6 // 2], torch.tensor([1, 2]), X)
    assert all(not n.meta["val"].dtype.is_floating_point for n in calls(program.module) if "index" not in str(n.target))


def test_dict_outputs_and_nested_inputs_survive() -> None:
    class Model(nn.Module):
        def forward(self, pair: Any, scale: Any) -> Any:
            return {"sum": pair[0] + pair[1], "scaled": [pair[0] * scale]}

    program = ingot.capture(Model(), ((X, X + 1), torch.tensor(2.0)))
    assert len(program.input_names) == 3
    assert len(program.output_names) == 2
    with pytest.raises(ingot.InputError, match="takes 3 inputs, the batch has 1"):
        program.flatten((X,))


def test_dynamic_batch_survives() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.relu() + torch.ones(4)

    program = ingot.capture(Net(), (X,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=9)},))
    longer = torch.randn(7, *X.shape[1:])
    assert program.flatten((longer,))[0].shape == longer.shape
    torch.testing.assert_close(program.module(longer)[0], longer.relu() + 1)  # type: ignore[operator]


def test_no_op_that_creates_remains() -> None:
    program = program_of(lambda x: torch.cat([x, torch.full((2, 1, 4), 9.0)], 1), X)
    kinds = [effect_of(n, constant_of).kind for n in calls(program.module)]
    assert Kind.CREATES not in kinds


def test_reshapes_that_cancel_keep_the_op_before_them() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(-1, -2)).flatten(2, 3).unflatten(2, (2, 2)).unsqueeze(2)

    model = type("Gram", (nn.Module,), {"forward": forward})()
    x = torch.randn(1, 7, 2, 2)
    torch.testing.assert_close(ingot.capture(model, (x,)).module(x)[0], model(x))


def test_a_view_of_strides_that_the_kernel_does_not_give_is_a_reshape() -> None:
    """With a batch of one the traced convolution is channels-last, the executed one is not."""

    class FromTokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(48, 96, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            image = self.conv(x.mT.reshape(1, 48, 3, 3))
            return image.permute(0, 2, 3, 1).reshape(1, 9, 96)

    net, x = FromTokens().eval(), torch.randn(1, 9, 48)
    program = ingot.capture(net, (x,))
    torch.testing.assert_close(program.module(x)[0], net(x))
    torch.testing.assert_close(program.reference(x)[0], net(x))


class OnePixelGrid(nn.Module):
    """On one pixel the grid is a constant, so affine_grid counts as movement; torch's decomposition writes in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        theta = torch.tensor([[[0.9, 0.1, 0.05], [-0.1, 0.8, 0.0]]])
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def test_a_decomposition_that_is_not_functional_is_left_out() -> None:
    x = torch.randn(1, 2, 1, 1)
    program = ingot.capture(OnePixelGrid(), (x,))
    assert torch.allclose(program.module(x)[0], OnePixelGrid()(x))


class ExpandedBuffer(nn.Module):
    """Elements that share memory: torch refuses to write there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([[2.0, 3.0]]).expand(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table


def test_an_expanded_buffer_is_captured() -> None:
    x = torch.randn(4, 2)
    assert torch.equal(ingot.capture(ExpandedBuffer(), (x,)).module(x)[0], ExpandedBuffer()(x))
