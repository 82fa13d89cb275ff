"""The neural-graphics pipeline: specs for inputs and outputs, regions, a second backend, layouts, scenarios."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.cli import main
from ingot.config.scopes import Scope
from ingot.plan.user_constraints import matching_ops
from ingot.result.scenario import run_scenario_folder
from tests.support.requirements import need_scenario_runner

SIZE = 24  # a width that is no multiple of what rows are aligned to


class Temporal(nn.Module):
    """The frame before is sampled where things were, by a flow that is estimated from both, and merged."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.see, self.flow = nn.Conv2d(8, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        self.merge, self.out = nn.Conv2d(8 + width, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        place = torch.linspace(-1, 1, SIZE)
        self.register_buffer("base", torch.stack(torch.meshgrid(place, place, indexing="xy"))[None])

    def forward(self, frame: torch.Tensor, previous: torch.Tensor, motion: torch.Tensor) -> torch.Tensor:
        seen = F.relu(self.see(torch.cat([frame, previous], 1)))
        flow = torch.tanh(self.flow(seen)) * 0.1 + motion
        grid = (self.base + flow).clamp(-1, 1).permute(0, 2, 3, 1)
        warped = F.grid_sample(previous, grid, padding_mode="border", align_corners=True)
        return torch.tanh(self.out(F.relu(self.merge(torch.cat([frame, warped, seen], 1)))))


def frames(n: int = 8) -> list[tuple[torch.Tensor, ...]]:
    """Smooth pictures, and motion that is not."""
    generator = torch.Generator().manual_seed(0)
    small = [torch.rand(2, 4, 6, 6, generator=generator) * 2 - 1 for _ in range(n)]
    big = [F.interpolate(s, size=SIZE, mode="bicubic").clamp(-1, 1) for s in small]
    return [(b[:1], b[1:], torch.randn(1, 2, SIZE, SIZE, generator=generator) * 0.05) for b in big]


RECIPE: dict[str, Any] = {
    "extra_backends": ["sampler"],
    "channels_last": ["*"],
    "inputs": ["snorm8", "snorm8", "float"],
    "outputs": ["snorm8"],
    "scopes": [
        {"op": "grid_sampler*", "inputs": ["snorm8", "snorm16"], "output": "snorm8"},
        {"feeds": "grid_sampler*:1", "precision": "float"},
    ],
}
HERE = {"options": {"run_on": "reference-model"}}


@pytest.fixture(scope="module")
def net() -> Temporal:
    torch.manual_seed(0)
    return Temporal().eval()


@pytest.fixture(scope="module")
def cast(net: Temporal) -> ingot.Casting:
    return ingot.cast(net, frames()[0], target="vgf", calibration=frames(), recipe=RECIPE | HERE)


def tosa_ops(tosa: bytes) -> Counter[str]:
    from tosa.Op import Op
    from tosa.TosaGraph import TosaGraph

    names = {v: k for k, v in vars(Op).items() if isinstance(v, int)}
    block = TosaGraph.GetRootAs(tosa, 0).Regions(0).Blocks(0)
    return Counter(names[block.Operators(i).Op()] for i in range(block.OperatorsLength()))


def top_level(casting: ingot.Casting) -> list[str]:
    """The ops of the program itself, outside of delegates."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    plan = deserialize_pte_binary(casting.pte).program.execution_plan[0]
    calls = [i.instr_args for i in plan.chains[0].instructions]
    return [plan.operators[c.op_index].name for c in calls if hasattr(c, "op_index")]


# ---- the pipeline whole ----


def test_delegates_around_one_sampler_and_nothing_else(cast: ingot.Casting) -> None:
    assert [d.backend for d in cast.delegates] == ["VgfBackend", "IngotSampler", "VgfBackend"]
    assert cast.host_ops == ()
    assert top_level(cast) == []
    assert all("TRANSPOSE" not in tosa_ops(d.files["graph.tosa"]) for d in cast.delegates if d.files)


def test_the_boundary_is_as_asked(cast: ingot.Casting) -> None:
    frame, previous, motion = cast.io.inputs
    (out,) = cast.io.outputs
    for side in (frame, previous, out):
        assert (side.dtype, side.scale, side.zero_point) == ("int8", float(np.float32(1 / 127)), 0)
        assert (side.qmin, side.qmax, side.layout) == (-127, 127, "channels_last")
    assert (motion.dtype, motion.scale, motion.layout) == ("float32", None, "channels_last")
    assert json.loads(cast.io.to_json())["inputs"][0]["layout"] == "channels_last"


def test_the_sampler_reads_snorm8_and_snorm16(cast: ingot.Casting) -> None:
    sampler = cast.delegates[1]
    assert [(i.dtype, i.layout) for i in sampler.inputs] == [("int8", "channels_last"), ("int16", "contiguous")]
    assert [(o.dtype, o.layout) for o in sampler.outputs] == [("int8", "channels_last")]
    node = next(d.point.node for d in cast.plan if d.op.startswith("aten.grid_sampler"))
    assert cast.plan.qparams(node, 1).scale == pytest.approx(1 / 32767)
    grid = [d for d in cast.plan if d.op.startswith(("aten.permute", "aten.add"))]
    assert grid
    assert all(d.qparams is None for d in grid)


def test_it_is_near_the_float_model(cast: ingot.Casting) -> None:
    assert cast.check.passed
    assert cast.check.outputs[0].sqnr_db > 30
    assert "sampler on its own executor" in cast.check.executed_on


def test_it_runs_as_a_scenario(
    cast: ingot.Casting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """VGF, the sampler's shader, VGF; the image is a texture. Moved first: all paths are relative."""
    need_scenario_runner()
    cast.scenario(tmp_path / "here", frames()[:2])
    moved = (tmp_path / "here").rename(tmp_path / "there")
    assert str(tmp_path) not in (moved / "scenario.json").read_text()
    assert "VK_FORMAT_R8G8B8A8_SNORM" in (moved / "scenario.json").read_text()
    monkeypatch.chdir("/")
    (output,) = run_scenario_folder(moved, keep=tmp_path / "out")
    assert output.steps <= 1
    assert output.passed
    assert np.load(tmp_path / "out" / "output_1_0.npy").shape == (1, SIZE, SIZE, 4)
    assert main(["run", str(moved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["passed"]


def test_a_scenario_that_is_off_is_told(cast: ingot.Casting, tmp_path: Path, capsys: Any) -> None:
    need_scenario_runner()
    cast.scenario(tmp_path)
    np.save(tmp_path / "expected_0_0.npy", -np.load(tmp_path / "expected_0_0.npy"))
    assert main(["run", str(tmp_path)]) == 3
    assert "WRONG" in capsys.readouterr().out


def test_a_computed_image_shares_its_memory_with_a_texture(tmp_path: Path) -> None:
    """The image that is sampled comes out of a .vgf: tensor and texture are one memory."""
    need_scenario_runner()

    class Blurred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blur = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return F.grid_sample(self.blur(image), grid, align_corners=False)

    torch.manual_seed(0)
    batches = [(torch.rand(1, 4, SIZE, SIZE) * 2 - 1, torch.rand(1, 20, SIZE, 2) * 2.4 - 1.2) for _ in range(4)]
    recipe: dict[str, Any] = {
        "extra_backends": ["sampler"],
        "channels_last": ["image", "grid_sampler"],
        "inputs": ["snorm8", "float"],
    }
    recipe |= {"scopes": [{"op": "grid_sampler*", "inputs": ["snorm8", "float"]}], "outputs": ["snorm8"]}
    casting = ingot.cast(Blurred(), batches[0], target="vgf", calibration=batches, recipe=recipe | HERE)
    assert casting.delegates[-1].inputs[-1].dtype == "float32"
    casting.scenario(tmp_path, batches[:2])
    assert '"memory_group"' in (tmp_path / "scenario.json").read_text()
    assert run_scenario_folder(tmp_path)[0].steps <= 1


# ---- regions ----


class Shared(nn.Module):
    """`both` feeds the grid and the image path; `only` feeds the grid, through `inner` and `outer`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.both, self.only, self.kind = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1), kind

    def forward(self, x: torch.Tensor) -> Any:
        both, only = torch.tanh(self.both(x)), torch.sigmoid(self.only(x))
        grid = (both + only).permute(0, 2, 3, 1)
        if self.kind == "nested":
            inner = F.grid_sample(only, grid * 0.5, align_corners=False)
            grid = inner.permute(0, 2, 3, 1)
        sampled = F.grid_sample(x, grid, align_corners=False)
        if self.kind == "returned":
            return sampled + both.sum(), only
        return sampled + both.mean(1, keepdim=True)


def feeding(kind: str) -> set[str]:
    program = ingot.capture(Shared(kind).eval(), (torch.randn(1, 3, 8, 8),))
    nodes = [n for n in program.module.graph.nodes if n.op == "call_function"]
    return {n.name for n in matching_ops(Scope(feeds="grid_sampler*:1", precision="float"), nodes)}


def test_what_feeds_only_the_grid() -> None:
    found = feeding("shared")
    assert {"conv2d_1", "sigmoid", "add", "permute"} <= found
    assert not found & {"conv2d", "tanh", "grid_sampler"}  # the image path reads them too


def test_what_is_returned_too_is_nobodys_own() -> None:
    assert not feeding("returned") & {"conv2d_1", "sigmoid", "conv2d", "tanh"}


def test_a_sampler_whose_result_is_a_grid_is_grid_arithmetic() -> None:
    """Its image is read nowhere else, so that is too."""
    found = feeding("nested")
    assert {"grid_sampler", "conv2d_1", "sigmoid", "mul"} <= found
    assert "grid_sampler_1" not in found


def test_a_producer_of_both_stays_in_the_precision_of_the_image_path() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(1, 3, 16, 16),) for _ in range(4)]
    recipe = {"extra_backends": ["sampler"], "scopes": [{"feeds": "grid_sampler*:1", "precision": "float"}]}
    casting = ingot.cast(Shared("shared"), batches[0], target="vgf", calibration=batches, recipe=recipe | HERE)
    assert casting.plan.qparams("conv2d") is not None or casting.plan.qparams("tanh") is not None
    assert casting.plan.qparams("conv2d_1") is casting.plan.qparams("sigmoid") is None
    assert casting.host_ops == ()


# ---- other ways to sample, through the whole road ----


@pytest.mark.parametrize("target", ["vgf", "xnnpack", "ethos-u55-128"])
def test_a_sampler_beside_any_target(target: str) -> None:
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 5, 3, padding=1)

        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return self.two(F.grid_sample(self.one(x), grid, "bicubic", "reflection", align_corners=False))

    torch.manual_seed(0)
    batches = [(torch.randn(2, 3, 9, 12), torch.rand(2, 7, 8, 2) * 3 - 1.5) for _ in range(6)]
    recipe = {"extra_backends": ["sampler-rgba"]} | (HERE if target == "vgf" else {})
    casting = ingot.cast(Sampled(), batches[0], target=target, calibration=batches, recipe=recipe)
    assert [d.backend for d in casting.delegates][1] == "IngotSampler"
    assert casting.delegates[1].inputs[0].shape == (2, 4, 9, 12)  # RGB padded to RGBA
    assert casting.host_ops == ()
    assert casting.check.outputs[0].sqnr_db > 30
    assert casting.check.outputs[0].faithful_db > 45


def test_a_float_image_with_an_integer_grid() -> None:
    """The grid is the delegate's first argument then: it is dequantized before the image is read."""

    class Sampled(nn.Module):
        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return F.grid_sample(x, grid, align_corners=True) * 2

    batches = [(torch.randn(1, 2, 6, 6), torch.rand(1, 5, 4, 2) * 2 - 1) for _ in range(4)]
    recipe: dict[str, Any] = {"extra_backends": ["sampler"], "inputs": ["float", "snorm16"]}
    recipe["scopes"] = [{"op": "grid_sampler*", "inputs": ["float", "snorm16"], "output": "float"}]
    casting = ingot.cast(Sampled(), batches[0], target="vgf", calibration=batches, recipe=recipe | HERE)
    assert {i.dtype for i in casting.delegates[0].inputs} == {"float32", "int16"}
    assert casting.check.outputs[0].sqnr_db > 35  # the product is int8
    assert casting.check.outputs[0].faithful_db > 60


# ---- layouts, boundary, float ----


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.relu(self.one(x)))


def plain_batches() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(1, 3, 16, 16, generator=generator) * 2 - 1,) for _ in range(6)]


def plain(target: str, **recipe: Any) -> ingot.Casting:
    torch.manual_seed(0)
    batches = plain_batches()
    where = HERE if target == "vgf" else {}
    return ingot.cast(Plain(), batches[0], target=target, calibration=batches, recipe=recipe | where)


TARGETS = ("vgf", "xnnpack", "ethos-u55-128")


@pytest.mark.parametrize("target", TARGETS)
def test_channels_last_is_a_property_of_the_plan(target: str) -> None:
    casting = plain(target, inputs=["snorm8"], outputs=["snorm8"], channels_last=["*"])
    assert casting.plan.channels_last == ("x", "conv2d_1")
    assert ingot.Plan.from_json(casting.plan.to_json()) == casting.plan
    assert [i.layout for i in (*casting.io.inputs, *casting.io.outputs)] == ["channels_last"] * 2
    assert [d.inputs[0].layout for d in casting.delegates] == ["channels_last"]
    assert casting.check.outputs[0].faithful_db > 60


class Sliced(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.cat([self.one(x)[:, :3], self.one(x)[:, 3:]], 1))


@pytest.mark.parametrize("target", TARGETS)
def test_a_layout_that_gets_lost_on_the_way_is_brought_back(target: str) -> None:
    """A slice of a channels-last tensor is none in ExecuTorch; what the file says is what counts."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    batches = plain_batches()
    recipe: dict[str, Any] = {"channels_last": ["*"], "inputs": ["snorm8"], "outputs": ["int8"]}
    where = HERE if target == "vgf" else {}
    casting = ingot.cast(Sliced(), batches[0], target=target, calibration=batches, recipe=recipe | where)
    plan = deserialize_pte_binary(casting.pte).program.execution_plan[0]
    assert [list(plan.values[i].val.dim_order) for i in (*plan.inputs, *plan.outputs)] == [[0, 2, 3, 1]] * 2
    assert casting.io.outputs[0].layout == "channels_last"
    assert casting.check.outputs[0].faithful_db > 60


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_stay_in_the_range_that_was_asked_for(target: str) -> None:
    """snorm8 ends at -127; int8 kernels would give -128, which a texture reads as the same."""
    casting = plain(target, outputs=[{"dtype": "int8", "scale": 0.002, "qmin": -127}], min_sqnr_db=0)
    files = {d.digest: d.files for d in casting.delegates}
    made = casting.evidence.target.runner.run(casting.pte, plain_batches(), files=files, timeout=60, fresh=False)
    assert min(int(batch[0].min()) for batch in made) == -127
    assert casting.check.outputs[0].faithful_db > 60


@pytest.mark.parametrize("target", TARGETS)
def test_conversions_in_the_open(target: str) -> None:
    """Asked to convert itself, the program does so outside of its delegates."""
    casting = plain(target, inputs=["snorm8"], outputs=["int8"], integer_io=False)
    names = [n.split("::")[1].removesuffix(".default") for n in top_level(casting)]
    assert [n.removesuffix(".out") for n in names] == ["quantize_per_tensor", "dequantize_per_tensor"]
    assert [i.dtype for i in (*casting.io.inputs, *casting.io.outputs)] == ["float32"] * 2
    assert (casting.delegates[0].inputs[0].dtype, casting.delegates[0].outputs[0].dtype) == ("int8", "int8")
    assert casting.host_ops == ()


@pytest.mark.parametrize("target", ["vgf", "xnnpack"])
def test_a_float_export(target: str) -> None:
    casting = plain(target, quantize=False)
    assert len(casting.delegates) == 1
    assert casting.check.outputs[0].sqnr_db > 100
    assert all(d.qparams is None for d in casting.plan)


def test_no_float_export_for_an_npu() -> None:
    with pytest.raises(ingot.IngotError, match="takes no float program"):
        plain("ethos-u55-128", quantize=False)


def test_a_plan_remembers_what_it_needs(cast: ingot.Casting, net: Temporal) -> None:
    program = ingot.capture(net, frames()[0])
    again = ingot.lower(program, ingot.Plan.from_json(cast.plan.to_json()))
    assert [d.digest for d in again.delegates] == [d.digest for d in cast.delegates]
    assert ingot.verify(again, frames()[:1]).passed


# ---- what does not fit ----


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"inputs": ["snorm8"]}, "the recipe has 1 inputs, the model has 3: frame, previous, motion"),
        ({"inputs": {"frme": "snorm8"}}, "no input 'frme'.*frame"),
        ({"outputs": ["snorm8", "float"]}, "2 outputs, the model has 1"),
        ({"extra_backends": ["samplr"]}, "unknown extra backend 'samplr'.*sampler"),
        ({"channels_last": ["framme"]}, "no input or output 'framme'.*frame"),
        ({"scopes": [{"op": "grid_sampler*", "inputs": ["snorm16", "snorm16"]}]}, "int16 is requested"),
        ({"scopes": [{"op": "grid_sampler*", "inputs": ["snorm8", "snorm8", "snorm8"]}]}, "operand 2.*has 2 operands"),
        ({"scopes": [{"op": "conv2d", "output": "float"}]}, "asks for float"),
        ({"scopes": [{"feeds": "grid_sampler*", "precision": "float"}]}, "names no operand"),
        ({"scopes": [{"feeds": "grid_smpler*:1", "precision": "float"}]}, "matches nothing"),
    ],
)
def test_wrong_recipes(net: Temporal, wrong: dict[str, Any], said: str) -> None:
    recipe = {"extra_backends": ["sampler"]} | HERE | wrong
    with pytest.raises(ingot.IngotError, match=said):
        ingot.cast(net, frames()[0], target="vgf", calibration=frames(2), recipe=recipe)


def test_an_input_that_is_no_image() -> None:
    batches = [(torch.randn(1, 8),)] * 2
    with pytest.raises(ingot.IngotError, match="2 dimensions; channels-last needs 4"):
        ingot.cast(
            nn.Linear(8, 4), batches[0], target="xnnpack", calibration=batches, recipe={"channels_last": ["input_1"]}
        )


def test_what_the_host_computes_is_no_scenario(tmp_path: Path) -> None:
    class Hosted(nn.Module):
        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return F.grid_sample(x * 2, grid, align_corners=False) + 1

    batches = [(torch.rand(1, 3, 8, 8), torch.rand(1, 8, 8, 2))] * 2
    casting = ingot.cast(Hosted(), batches[0], target="vgf", calibration=batches, recipe=HERE)
    with pytest.raises(ingot.IngotError, match="grid_sampler"):
        casting.scenario(tmp_path)


def test_scenarios_are_made_of_vgf_files(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match=r"no scenario.*vgf"):
        plain("xnnpack").scenario(tmp_path)
    assert main(["run", str(tmp_path)]) == 2
