"""Ops that are known to cause trouble on Arm's targets: factories, layout changes, mixed precision, options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import ingot
from ingot.result.report.text import summary
from ingot.targets.arm import runner
from ingot.targets.arm.device import Device
from ingot.targets.arm.requirements import check_converter
from ingot.targets.base import Requirement
from tests.support.arm import BATCHES, HOW, assert_whole, cast, stored
from tests.support.requirements import need

TWO = ("vgf", "ethos-u55-128")
EXACT = 140  # dB between artefact and quantized graph: no step differs


class Factories(nn.Module):
    """All ops that create a tensor, concatenated with a computed one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(9, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = x[:, :1]
        filled = torch.empty(1, 1, 8, 8).fill_(0.25) * torch.scalar_tensor(2.0)
        ramp = (torch.arange(8, dtype=x.dtype) / 8).expand(1, 1, 8, 8)
        made = [torch.full((1, 1, 8, 8), fill_value=0.5), torch.zeros(1, 1, 8, 8), torch.ones_like(one)]
        return self.conv(torch.cat([x, *made, torch.full_like(one, -0.25), ramp, filled], 1))


class Returned(nn.Module):
    """One output is computed, the others are created constants."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.conv(x), torch.full((1, 3), fill_value=2.0), torch.arange(4.0), torch.zeros(2)


@pytest.mark.parametrize("io", ["float", "int8"])
@pytest.mark.parametrize("name", TWO)
def test_factories_are_in_the_delegate(name: str, io: str) -> None:
    casting = cast(Factories(), need(name), recipe={"inputs": [io], "outputs": [io]})
    assert_whole(casting, EXACT)
    assert {casting.io.inputs[0].dtype, casting.io.outputs[0].dtype} == {"float32" if io == "float" else io}


@pytest.mark.parametrize("io", ["float", "int8"])
@pytest.mark.parametrize("name", TWO)
def test_created_tensors_may_be_outputs(name: str, io: str) -> None:
    casting = cast(Returned(), need(name), recipe={"outputs": [io, "float", "float", "float"]})
    assert len(casting.delegates) == 1
    assert min(o.faithful_db for o in casting.check.outputs) >= EXACT
    assert all(o.max_abs_error == 0 for o in casting.check.outputs[1:])


def test_a_program_without_ops_has_no_delegate() -> None:
    class Constants(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((2, 2), 3.0)

    casting = cast(Constants(), need("ethos-u55-128"))
    assert casting.delegates == ()
    assert casting.check.passed


class MissingOps(nn.Module):
    """Neither Ethos-U55 nor the runtime has a kernel for these ops: 3-d convolutions, adaptive max pools, bicubic."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv3d(1, 4, 3, padding=1), nn.ConvTranspose3d(4, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        volume = self.up(self.conv(x.unsqueeze(1)).relu())
        wide = F.interpolate(x, scale_factor=2.0, mode="bicubic")
        return volume, F.adaptive_max_pool3d(volume, (2, 3, 3)), *F.adaptive_max_pool2d(x, (3, 3), True), wide


ONE_DIMENSION = {
    "max": nn.MaxPool1d(2),
    "average": nn.AvgPool1d(3, 2, 1),
    "adaptive": nn.AdaptiveAvgPool1d(4),
    "transposed": nn.ConvTranspose1d(8, 8, 4, 2, 1),
}


@pytest.mark.parametrize("kind", ONE_DIMENSION)
def test_pools_and_transposed_convolutions_of_signals_are_in_the_delegate(kind: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), ONE_DIMENSION[kind], nn.Conv1d(8, 8, 3)).eval()
    batches = [(torch.randn(1, 3, 16),) for _ in range(4)]
    assert_whole(ingot.cast(net, batches[0], target=need("ethos-u55-128"), calibration=batches))


@pytest.mark.parametrize("name", TWO)
def test_ops_that_nothing_runs_are_rewritten(name: str) -> None:
    casting = cast(MissingOps(), need(name))
    assert casting.check.passed
    assert min(o.sqnr_db for o in casting.check.outputs) > 30


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ceil(x.transpose(1, 3)), torch.floor(self.conv(x))


@pytest.mark.parametrize("name", TWO)
def test_a_step_function_reads_a_program_input_as_it_is(name: str) -> None:
    """Of an input in int8 some values would be on the other side of a step; a computed value has its error already."""
    casting = cast(Steps(), need(name), recipe={"min_sqnr_db": 0.0})
    assert casting.check.outputs[0].max_abs_error == 0
    kinds = {op.op.split(".")[0] for op in casting.host_ops}
    assert "floor" not in kinds
    assert "ceil" not in kinds if name == "vgf" else "ceil" in kinds


@pytest.mark.parametrize("name", TWO)
def test_circular_padding_is_cast(name: str) -> None:
    """It is a slice assignment to a constant: parts of the constant are constants again after Arm's passes."""
    casting = cast(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), need(name))
    assert casting.check.passed
    assert casting.check.outputs[0].sqnr_db > 30


class Block(nn.Module):
    """A ConvNeXt block with all of torch's ops for a change of layout."""

    def __init__(self, width: int, to: str) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.move = to

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last, first = MOVES[self.move]
        return x + first(self.down(F.gelu(self.up(self.norm(last(self.depthwise(x)))))))


MOVES = {
    "moveaxis": (lambda x: torch.moveaxis(x, 1, -1), lambda x: torch.moveaxis(x, -1, 1)),
    "movedim": (lambda x: x.movedim((2, 3), (1, 2)), lambda x: x.movedim(-1, 1)),
    "swapaxes": (lambda x: x.swapaxes(1, 2).swapaxes(2, 3), lambda x: x.swapaxes(2, 3).swapaxes(1, 2)),
    "einsum": (lambda x: torch.einsum("nchw->nhwc", x), lambda x: torch.einsum("nhwc->nchw", x)),
}


def test_layout_changes_are_one_delegate() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), *(Block(8, to) for to in MOVES))
    casting = cast(net, need("ethos-u55-128"))
    assert_whole(casting)
    estimate: Any = casting.performance[0]
    assert estimate.cycles > 0


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grid, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.grid(self.stem(x).relu()).tanh())


@pytest.mark.parametrize(("name", "precision"), [("vgf", "int16"), ("vgf", "float"), ("ethos-u55-128", "int16"), ("ethos-u85-256", "int16")])  # fmt: skip
def test_ops_of_another_precision_stay_in_the_delegate(name: str, precision: str) -> None:
    recipe = {"scopes": [{"path": "grid", "precision": precision}], "noise_vs_latency": 0.0}
    casting = cast(Regions(), need(name), recipe=recipe)
    assert_whole(casting, 60)
    assert stored(casting.plan)["conv2d_1"] == precision
    assert stored(casting.plan)["conv2d_2"] == "int8"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)) * 0.25)


@pytest.mark.parametrize("precision", ["float", "int8"])
def test_a_factor_after_a_convolution_leaves_the_users_weights_alone(precision: str) -> None:
    """The stock flow folds the factor into the weights of the user's model."""
    torch.manual_seed(0)
    net = Scaled().eval()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    scopes = [{"path": "conv", "precision": precision}, {"op": "mul", "precision": precision}]
    casting = ingot.cast(net, BATCHES[0], target=need("vgf"), calibration=BATCHES, recipe={"scopes": scopes})
    assert_whole(casting, 60)
    assert casting.check.outputs[0].sqnr_db > 30
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


class Traps(nn.Module):
    """Slice assignment, roll, flip, split and bmm, two transposes of one value."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv2d(3, 8, 3, padding=1), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return TRAPS[self.kind](self.conv(x))


def assigned(y: torch.Tensor) -> torch.Tensor:
    out = y * 2
    out[:, :2] = y[:, 2:4]
    return out


def split_and_multiplied(y: torch.Tensor) -> torch.Tensor:
    a, b = y.flatten(2)[0].split(4)
    return torch.bmm(a.unsqueeze(0), b.transpose(0, 1).unsqueeze(0))


def windows(y: torch.Tensor) -> torch.Tensor:
    """Swin's cyclic shift and 4x4 windows, and their inverse."""
    b, c, h, w = y.shape
    y = torch.roll(y.permute(0, 2, 3, 1), (-2, -2), (1, 2)).view(b, h // 4, 4, w // 4, 4, c)
    y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c) * 2
    return y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


def biased_attention(y: torch.Tensor) -> torch.Tensor:
    """Swin's window attention with relative position bias and the mask of a shifted window."""
    tokens = y.flatten(2).transpose(1, 2)[:, :16] * 0.3
    table, places = torch.linspace(-1, 1, 31), torch.arange(16)[:, None] - torch.arange(16)[None] + 15
    mask = torch.zeros(16, 16).masked_fill(torch.arange(16)[:, None] // 8 != torch.arange(16)[None] // 8, -100.0)
    weights = (tokens @ tokens.transpose(1, 2) + table[places] + mask).softmax(-1)
    return weights @ tokens


def merged(y: torch.Tensor) -> torch.Tensor:
    """Swin's patch merging: four strided slices, concatenated."""
    return torch.cat([y[:, :, i::2, j::2] for j in (0, 1) for i in (0, 1)], 1) * 2


TRAPS = {
    "slice assignment": assigned,
    "roll": lambda y: torch.roll(y, (3, -2), (2, 3)) * 2,
    "flip": lambda y: y.flip(-1) + y,
    "split and bmm": split_and_multiplied,
    "gather by constants": lambda y: y.gather(3, torch.tensor([3, 0, 2]).expand(1, 8, y.shape[2], 3)) * 2,
    "indices by constants": lambda y: y[:, :, [5, 1, 1, 4]] * 2,
    "local response norm": lambda y: F.local_response_norm(y, 3),
    "shifted windows": windows,
    "attention with a relative bias": biased_attention,
    "patch merging": merged,
    "permute of a broadcast sum": lambda y: (y.mean((1, 2, 3), keepdim=True) - y).permute(2, 0, 1, 3),
    "sibling transposes": lambda y: y.transpose(2, 3) + y.transpose(1, 3).transpose(1, 3) * 2,
}


@pytest.mark.parametrize("kind", TRAPS)
@pytest.mark.parametrize("name", TWO)
def test_ops_that_the_stock_flow_breaks(name: str, kind: str) -> None:
    """In the stock flow: silently wrong, fragmented, or a crash."""
    casting = cast(Traps(kind), need(name))
    assert len(casting.delegates) == 1
    assert casting.check.outputs[0].sqnr_db >= 25
    assert casting.check.outputs[0].faithful_db >= 60


def test_host_ops_between_delegates_are_executed() -> None:
    class Hosted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x).relu()
            grid = torch.tanh(y[:, :2]).permute(0, 2, 3, 1)
            return self.two(F.grid_sample(y, grid, align_corners=False))

    casting = cast(Hosted(), need("ethos-u55-128"))
    assert len(casting.delegates) == len(casting.performance) == 2
    assert "grid_sampler" in " ".join(o.op for o in casting.host_ops)
    assert casting.check.outputs[0].sqnr_db >= 25
    assert len({d.digest for d in casting.delegates}) == 2


@pytest.mark.parametrize("channels", [1, 4, 8])
def test_grid_sample_is_right_or_on_the_host(channels: int) -> None:
    """The stock flow takes it as a shader, which returns zeros for 1 or 8 channels."""

    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, channels, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return F.grid_sample(y, x[:, :2].permute(0, 2, 3, 1) * 0.9, align_corners=False)

    casting = cast(Sampled(), need("vgf"))
    assert [o.op for o in casting.host_ops] == ["grid_sampler_2d.default"]
    assert casting.check.outputs[0].sqnr_db >= 25


def test_dynamic_shapes_are_refused() -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    with pytest.raises(ingot.IngotError, match="dynamic"):
        cast(nn.Conv2d(3, 4, 3), need("ethos-u55-128"), [(torch.randn(2, 3, 8, 8),)] * 4, dynamic_shapes=({0: batch},))


def test_options_are_checked_against_what_vela_knows() -> None:
    name = need("ethos-u55-128")
    recipe = {"options": {"system_config": "Ethos_U55_Deep_Embedded", "memory_mode": "Sram_Only"}}
    estimates: Any = cast(Regions(), name, recipe=recipe).performance
    (made,) = estimates
    assert (made.system_config, made.memory_mode) == ("Ethos_U55_Deep_Embedded", "Sram_Only")
    for wrong, said in (
        ({"system_config": "Ethos_U85_SYS_DRAM_Mid"}, "no system_config"),
        ({"memory": "x"}, "memory_mode"),
    ):
        with pytest.raises(ingot.errors.InputError, match=said):
            cast(Regions(), name, recipe={"options": wrong})


@pytest.mark.smoke
def test_without_a_vulkan_driver_the_reference_model_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "REQUIREMENTS", (Requirement("Vulkan driver", lambda: None, "apt-get install it"),))
    assert "TOSA reference model" in runner.ArmRunner(Device("vgf")).executed_on()
    assert "scenario-runner" in runner.ArmRunner(Device("vgf", run_on="scenario-runner")).executed_on()


@pytest.mark.smoke
@pytest.mark.parametrize("script", ["echo GLIBC_2.38 not found >&2; exit 1", "exec /nowhere"])
def test_a_converter_that_does_not_start(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = tmp_path / "model-converter"
    converter.write_text(f"#!/bin/sh\n{script}\n")
    converter.chmod(0o755)
    monkeypatch.setenv("MODEL_CONVERTER_PATH", str(converter))
    with pytest.raises(
        ingot.IngotError, match=r"does not start.*(GLIBC_2.38|nowhere).*pip install ai_ml_sdk_model_converter"
    ):
        check_converter()


@pytest.mark.parametrize("name", [*TWO, "ethos-u85-256"])
def test_int4_weights_by_recipe(name: str) -> None:
    whole = cast(Regions(), need(name), recipe={"scopes": [{"op": "*", "weights": "int8"}]})
    narrow = cast(Regions(), name, recipe={"scopes": [{"path": "grid", "weights": "int4"}]})
    assert_whole(narrow)
    assert narrow.plan.qparams("conv2d_1", 1).qmax == 7
    assert "int4: requested by the recipe" in narrow.plan.why("conv2d_1")
    assert whole.plan.qparams("conv2d_1", 1).qmax == 127
    assert 10 <= narrow.check.outputs[0].sqnr_db < whole.check.outputs[0].sqnr_db


@pytest.mark.parametrize("name", ["ethos-u55-128", "ethos-u85-256"])
def test_the_planner_chooses_int4_where_it_adds_least_noise(name: str) -> None:
    plain = cast(Regions(), need(name))
    narrow = cast(Regions(), name, recipe={"int4_sqnr_budget_db": 14})
    assert_whole(narrow)
    four = [d.point.node for d in narrow.plan if d.qparams is not None and d.qparams.qmax == 7]
    eight = [
        d.point.node for d in narrow.plan if d.point.operand == 1 and d.qparams is not None and d.qparams.qmax == 127
    ]
    assert four
    assert eight  # not everywhere: it would cost more
    assert "it adds little noise per byte saved" in narrow.plan.why(four[0])
    assert f"int4 weights: {len(four)} ops" in narrow.notes
    assert len(narrow.pte) < len(plain.pte)
    lost = plain.check.outputs[0].sqnr_db - narrow.check.outputs[0].sqnr_db
    assert 0 < lost < 18  # 14 were allowed, by a first-order estimate; three layers have none to spare


@pytest.mark.parametrize(
    ("name", "says"), [("xnnpack", "has no int4 weights"), ("vgf", "stores each int4 weight in a byte")]
)
def test_a_note_where_int4_weights_save_nothing(name: str, says: str) -> None:
    casting = cast(Regions(), name if name == "xnnpack" else need(name), recipe={"int4_sqnr_budget_db": 20})
    assert any(says in note for note in casting.notes)
    assert not any(d.qparams is not None and d.qparams.qmax == 7 for d in casting.plan)


def test_int4_weights_need_int8_activations() -> None:
    scope = {"path": "grid", "weights": "int4", "precision": "int16"}
    with pytest.raises(ingot.IngotError, match="need int8 activations"):
        cast(Regions(), need("vgf"), recipe={"scopes": [scope]})
    with pytest.raises(ingot.IngotError, match="no int4 weights"):
        cast(Regions(), "xnnpack", recipe={"scopes": [{"path": "grid", "weights": "int4"}]})


def test_the_integer_profile_of_vgf() -> None:
    casting = cast(Regions(), need("vgf"), recipe={"options": {"numbers": "INT"}})
    assert_whole(casting)
    assert HOW["vgf"] in casting.check.executed_on
    held: Any = casting.performance[0]
    assert len(casting.performance) == 1
    assert [s.kind for s in held.segments] == ["GRAPH"]
    assert held.bytes["input"] == BATCHES[0][0].numel()  # one int8 each
    assert "1 segment" in summary(casting)
