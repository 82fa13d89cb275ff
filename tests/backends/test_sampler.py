"""The sampler against torch's grid_sample: numpy on the host, the shader on Arm's scenario-runner, payloads."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ingot.backends.sampler import host, shader
from ingot.backends.sampler.payload import LAYOUTS, MODES, PADDINGS, SampleJob, TensorSpec
from ingot.backends.sampler.shader import (
    SampleTask,
    can_be_texture,
    run_tasks,
    shader_for,
    shared_memory,
    write_task_scenario,
)
from ingot.backends.sampler.shaders import build
from ingot.errors import ArtefactError
from ingot.targets.arm import vulkan_tools as vulkan
from ingot.targets.arm.scenario_runner import execute_scenario
from tests.support.requirements import need_requirements

SECONDS = 300.0
WAYS = list(product(MODES, PADDINGS, (False, True)))
SHAPES = [  # batch, channels, height and width of the image, height and width of the output
    (1, 1, 5, 7, 6, 4),
    (2, 3, 6, 4, 9, 10),
    (1, 4, 7, 5, 5, 11),
    (2, 8, 4, 9, 3, 7),
    (1, 2, 1, 6, 4, 5),
    (2, 5, 1, 1, 3, 3),
]
KINDS = list(product(*shader.DTYPES.values()))  # types of image, grid and output
EXACT = 1e-5


@dataclass(frozen=True)
class Case:
    """A job, its inputs and torch's output, in the shape of their memory layout."""

    job: SampleJob
    arrays: list[np.ndarray]
    expected: np.ndarray


# ---- making cases ----


def case(
    way: tuple[str, str, bool], layouts: tuple[str, str], shape: tuple[int, ...], kind: tuple[str, ...], seed: int = 0
) -> Case:
    rng, (n, c, h, w, oh, ow) = np.random.default_rng(seed), shape
    image = side(kind[0], (n, c, h, w), layouts[0], 1 / 120, 3)
    grid = side(kind[1], (n, oh, ow, 2), "contiguous", {"int8": 0.0117, "int16": 0.0000457}.get(kind[1]), -1)
    output = side(kind[2], (n, c, oh, ow), layouts[1], 1 / 90, -5)
    axes = [coordinates(rng, way, size, (n, oh, ow)) for size in (w, h)]
    return made(SampleJob(*way, image, grid, output), rng.uniform(-1, 1, (n, c, h, w)), np.stack(axes, -1))


def side(dtype: str, shape: tuple[int, ...], layout: str, scale: float | None, zero: int) -> TensorSpec:
    if dtype == "float32":
        return TensorSpec(dtype, shape, layout)
    limits = np.iinfo(dtype)
    return TensorSpec(dtype, shape, layout, scale, zero, int(limits.min) + 1, int(limits.max))


def coordinates(
    rng: np.random.Generator, way: tuple[str, str, bool], size: int, shape: tuple[int, ...], reach: float = 1.4
) -> np.ndarray:
    """Far beyond the image; for "nearest" away from the midpoints between pixels, where rounding decides."""
    mode, _, align = way
    span, shift = (max(size - 1, 1), 0.0) if align else (size, 0.5)
    low, high = ((at + 1) * span / 2 - shift for at in (-reach, reach))
    pixels = rng.integers(int(np.ceil(low)), int(np.floor(high)) + 1, shape)
    apart = 0.4 if mode == "nearest" else 0.5
    return (pixels + rng.uniform(-apart, apart, shape) + shift) * 2 / span - 1


def made(job: SampleJob, image: np.ndarray, grid: np.ndarray) -> Case:
    given = [stored(torch.tensor(array).float(), s) for array, s in ((image, job.image), (grid, job.grid))]
    reals = [real(array, s) for array, s in zip(given, (job.image, job.grid), strict=True)]
    expected = F.grid_sample(reals[0], reals[1], job.mode, job.padding, job.align_corners)
    return Case(
        job,
        [laid(x, s) for x, s in zip(given, (job.image, job.grid), strict=True)],
        laid(stored(expected, job.output), job.output),
    )


def stored(x: torch.Tensor, s: TensorSpec) -> torch.Tensor:
    if s.scale is None:
        return x
    return (torch.round(x * (1 / s.scale)) + s.zero_point).clamp(*s.qrange).to(getattr(torch, s.dtype))


def real(x: torch.Tensor, s: TensorSpec) -> torch.Tensor:
    return x if s.scale is None else (x.float() - s.zero_point) * s.scale


def laid(x: torch.Tensor, s: TensorSpec) -> np.ndarray:
    return (x.permute(0, 2, 3, 1) if s.layout == "channels_last" else x).contiguous().numpy()


def assert_right(got: np.ndarray, wanted: Case) -> None:
    assert (str(got.dtype), got.shape) == (wanted.job.output.dtype, wanted.job.output.memory_shape)
    allowed = 1 if wanted.job.output.quantized else EXACT
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.expected.astype(np.float64), rtol=0, atol=allowed, err_msg=str(wanted.job)
    )


def on_host(wanted: Case) -> np.ndarray:
    ((got,),) = host.sample_on_host(wanted.job.to_bytes(), [wanted.arrays], 1)
    return got


# ---- the host ----


@pytest.mark.smoke
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_the_host_agrees_with_torch(way: tuple[str, str, bool]) -> None:
    for i, (layouts, shape, kind) in enumerate(product(product(LAYOUTS, LAYOUTS), SHAPES, KINDS)):
        wanted = case(way, layouts, shape, kind, seed=i)
        assert_right(on_host(wanted), wanted)


@pytest.mark.smoke
def test_int16_image_grid_and_output() -> None:
    for way in WAYS:
        wanted = case(way, ("contiguous", "channels_last"), SHAPES[1], ("int16", "int16", "int16"))
        assert_right(on_host(wanted), wanted)


@pytest.mark.smoke
@settings(deadline=None)
@given(
    st.sampled_from(WAYS),
    st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    st.tuples(*[st.integers(1, 9)] * 6),
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
)
def test_any_shape(
    way: tuple[str, str, bool], layouts: tuple[str, str], shape: tuple[int, ...], kind: tuple[str, ...], seed: int
) -> None:
    wanted = case(way, layouts, shape, kind, seed)
    assert_right(on_host(wanted), wanted)


ODD = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.3, -1.0, 1.0]


def odd(way: tuple[str, str, bool], out: str = "float32") -> Case:
    """All pairs of these as x and y of a grid."""
    image = np.random.default_rng(0).uniform(-1, 1, (1, 2, 4, 5))
    grid = np.stack(np.meshgrid(ODD, ODD), -1)[None]
    output = side(out, (1, 2, *grid.shape[1:3]), "contiguous", 1 / 90, -5)
    return made(
        SampleJob(*way, TensorSpec("float32", image.shape), TensorSpec("float32", grid.shape), output), image, grid
    )


@pytest.mark.smoke
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_nan_and_infinite_coordinates(way: tuple[str, str, bool]) -> None:
    """As torch's CPU kernel treats NaN and infinity; quantized, NaN is the zero point."""
    wanted = odd(way)
    got = on_host(wanted)
    np.testing.assert_allclose(got, wanted.expected, rtol=0, atol=EXACT)
    assert (on_host(odd(way, "int8"))[np.isnan(got)] == -5).all()


def tied(align: bool) -> Case:
    """Nearest, exactly between pixels. The coordinates are exact in float32, so only the tie rule decides."""
    places = np.arange(-10, 11) / 8
    grid = np.stack(np.meshgrid(places, places), -1)[None]
    image = np.random.default_rng(0).uniform(-1, 1, (1, 2, 9, 5) if align else (1, 2, 8, 4))
    output = TensorSpec("float32", (1, 2, *grid.shape[1:3]))
    return made(
        SampleJob(
            "nearest", "border", align, TensorSpec("float32", image.shape), TensorSpec("float32", grid.shape), output
        ),
        image,
        grid,
    )


@pytest.mark.smoke
@pytest.mark.parametrize("align", [False, True])
def test_nearest_rounds_half_to_even(align: bool) -> None:
    assert (on_host(tied(align)) == tied(align).expected).all()


@pytest.mark.smoke
def test_batches_are_independent() -> None:
    first, second = (case(WAYS[0], LAYOUTS, SHAPES[1], KINDS[-1], seed) for seed in (1, 2))
    got = host.sample_on_host(first.job.to_bytes(), [first.arrays, second.arrays], 1)
    assert_right(got[0][0], first)
    assert_right(got[1][0], second)
    assert host.sample_on_host(first.job.to_bytes(), [], 1) == []


# ---- the shader ----


def need() -> None:
    need_requirements("running a shader", vulkan.RUNNING)


def test_the_shader_agrees_with_torch() -> None:
    """All modes in all layouts, with alternating shapes and types; each shader several times. One start of the runner."""
    need()
    turns, ways = random.Random(0), list(product(WAYS, LAYOUTS, LAYOUTS))
    kinds = KINDS * (len(ways) * 2 // len(KINDS))
    turns.shuffle(kinds)
    drawn = [(way, (a, b), turns.choice(SHAPES), kind) for (way, a, b), kind in zip(ways * 2, kinds, strict=True)]
    cases = [case(*what, seed=i) for i, what in enumerate(drawn)]
    for got, wanted in zip(run_tasks([SampleTask(c.job, c.arrays) for c in cases], SECONDS), cases, strict=True):
        assert_right(got, wanted)


def test_the_shader_on_nan_and_infinite_coordinates() -> None:
    """Same as on the host. Vulkan guarantees nothing about NaN: this holds for the tested driver."""
    need()
    cases = [odd(way, out) for way in WAYS for out in ("float32", "int8")]
    for got, wanted in zip(run_tasks([SampleTask(c.job, c.arrays) for c in cases], SECONDS), cases, strict=True):
        np.testing.assert_allclose(got, on_host(wanted), rtol=0, atol=1 if got.dtype == np.int8 else EXACT)


def test_the_shader_rounds_half_to_even() -> None:
    need()
    cases = [tied(align) for align in (False, True)]
    for got, wanted in zip(run_tasks([SampleTask(c.job, c.arrays) for c in cases], SECONDS), cases, strict=True):
        assert (got == wanted.expected).all()


def test_the_shader_as_an_executor() -> None:
    need()
    first, second = (case(WAYS[0], LAYOUTS, SHAPES[1], KINDS[-1], seed) for seed in (1, 2))
    got = shader.sample_on_vulkan(first.job.to_bytes(), [first.arrays, second.arrays], 1, SECONDS)
    assert_right(got[0][0], first)
    assert_right(got[1][0], second)
    assert shader.sample_on_vulkan(first.job.to_bytes(), [], 1, SECONDS) == []


# ---- textures ----


@cache
def pictured(way: tuple[str, str, bool], kind: tuple[str, ...], width: int = 10) -> Case:
    """A case whose image can be a texture."""
    plain = case(way, ("channels_last", "channels_last"), (1, 4, 6, width, 9, 5), ("int8", *kind))
    job = replace(plain.job, image=replace(plain.job.image, scale=1 / 127, zero_point=0))
    return made(
        job,
        np.random.default_rng(1).uniform(-1, 1, job.image.shape),
        real(torch.tensor(plain.arrays[1]), job.grid).numpy(),
    )


def test_textures_give_the_same_numbers() -> None:
    need()
    cases = [pictured(way, KINDS[i % 6][1:]) for i, way in enumerate(WAYS)]
    for got, wanted in zip(
        run_tasks([SampleTask(c.job, c.arrays, texture=True) for c in cases], SECONDS), cases, strict=True
    ):
        assert_right(got, wanted)


def test_a_texture_in_the_memory_of_a_tensor(tmp_path: Path) -> None:
    """One dispatch writes a tensor, the next reads the same memory as a texture, with and without row padding."""
    need()
    for width in (10, 16):
        wanted = pictured(WAYS[0], ("int16", "int8"), width)
        folder = tmp_path / str(width)
        folder.mkdir()
        made = execute_scenario(chained(folder, wanted), SECONDS)
        assert_right(made["output_1.npy"], wanted)


def chained(folder: Path, wanted: Case) -> Path:
    """The first task copies the image into the shared tensor; the second samples its texture."""
    picture, (_, _, h, w) = wanted.job.image, wanted.job.image.shape
    across, down = np.linspace(-1, 1, w, dtype=np.float32), np.linspace(-1, 1, h, dtype=np.float32)
    grid = np.stack(np.meshgrid(across, down), -1)[None]
    copying = SampleJob("nearest", "border", True, picture, TensorSpec("float32", grid.shape), picture)
    file = write_task_scenario(
        folder, [SampleTask(copying, [wanted.arrays[0], grid]), SampleTask(wanted.job, wanted.arrays, texture=True)]
    )
    scenario = json.loads(file.read_text())
    kept = [r for r in scenario["resources"] if next(iter(r.values()))["uid"] not in ("output_0", "image_1")]
    scenario["resources"] = kept + shared_memory(picture, "output_0", "image_1")
    file.write_text(json.dumps(scenario))
    return file


@pytest.mark.smoke
def test_what_can_be_a_texture() -> None:
    job = pictured(WAYS[0], ("int16", "int8")).job
    assert can_be_texture(job)
    others: dict[str, Any] = {"scale": 1 / 128, "zero_point": 1, "qmin": -128, "layout": "contiguous"}
    for name, value in others.items():
        other = replace(job, image=replace(job.image, **{name: value}))
        assert not can_be_texture(other)
        with pytest.raises(ArtefactError, match="cannot be a texture"):
            shader_for(other, texture=True)
    assert not can_be_texture(case(WAYS[0], LAYOUTS, SHAPES[2], KINDS[0]).job)
    assert can_be_texture(replace(job, image=replace(job.image, scale=float(np.float32(1 / 127)))))


# ---- the files ----


@pytest.mark.smoke
def test_every_shader_is_shipped_and_found() -> None:
    assert {name for name, _ in build.variants()} == {file.name for file in shader.FOLDER.glob("*.spv")}
    for kind in KINDS:
        needed = shader_for(case(WAYS[0], ("channels_last",) * 2, (1, 4, 5, 6, 9, 17), kind).job)
        assert needed.spirv[:4] == bytes.fromhex("03022307")
        assert needed.groups == (3, 2, 1)
        assert [i for i, _ in needed.constants] == list(range(19))
    job = case(WAYS[0], LAYOUTS, SHAPES[0], ("int16", "int16", "int8")).job
    with pytest.raises(ArtefactError, match="no shader for image of int16 · try: one of: float32, int8"):
        shader_for(job)


def test_the_shipped_shaders_are_those_of_the_source() -> None:
    need_requirements("compiling shaders", [build.GLSLC])
    for name, macros in build.variants():
        assert (shader.FOLDER / name).read_bytes() == build.compile_shader(macros), (
            f"{name}: python -m {build.__name__}"
        )


@pytest.mark.smoke
def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "GLSLC", replace(build.GLSLC, found=lambda: None))
    with pytest.raises(ArtefactError, match="glslc is not found · try: pip install ai_ml_sdk_scenario_runner"):
        build.compile_shader({})


# ---- jobs as bytes ----


@pytest.mark.smoke
def test_a_job_round_trips_through_bytes() -> None:
    for kind in KINDS:
        job = case(WAYS[-1], LAYOUTS, SHAPES[1], kind).job
        payload = job.to_bytes()
        assert SampleJob.from_bytes(payload) == job
        assert payload.startswith(b"INGS\x01")
        assert len(payload) < 1000


@pytest.mark.smoke
@given(st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_damaged_bytes_are_refused_or_decode(at: int, byte: int, cut: bool) -> None:
    payload = bytearray(case(WAYS[0], LAYOUTS, SHAPES[0], KINDS[-1]).job.to_bytes())
    payload = payload[:at] if cut else payload[:at] + bytes([byte]) + payload[at + 1 :]
    with suppress(ArtefactError):
        assert isinstance(SampleJob.from_bytes(bytes(payload)), SampleJob)


def refused(payload: bytes, batches: list[list[np.ndarray]], outputs: int = 1) -> str:
    with pytest.raises(ArtefactError) as e:
        host.sample_on_host(payload, batches, outputs)
    with pytest.raises(ArtefactError) as same:
        shader.sample_on_vulkan(payload, batches, outputs, SECONDS)
    assert str(same.value) == str(e.value)
    return str(e.value)


@pytest.mark.smoke
def test_inputs_that_do_not_fit_are_refused() -> None:
    good = case(WAYS[0], ("channels_last", "contiguous"), SHAPES[2], ("int8", "float32", "int8"))
    payload, (image, grid) = good.job.to_bytes(), good.arrays
    assert "truncated or damaged" in refused(payload[:-9], [])
    assert "does not begin with INGS" in refused(b"INGS", [])
    assert "does not begin with INGS" in refused(b"VGF1" + payload, [])
    assert "version 9, this Ingot reads version 1" in refused(b"INGS\x09" + payload[5:], [])
    assert "takes an image and a grid, got 1 arrays" in refused(payload, [[image]])
    assert "image of the sampler is int8 of [1, 7, 5, 4], got uint8" in refused(payload, [[image.view(np.uint8), grid]])
    assert "got int8 of [1, 4, 7, 5]" in refused(payload, [[image.transpose(0, 3, 1, 2), grid]])
    assert "grid of the sampler is float32" in refused(payload, [[image, grid.astype(np.float64)]])
    assert "one output, the program expects 2" in refused(payload, [[image, grid]], outputs=2)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "cubic"}, "unknown mode 'cubic'"),
        ({"padding": "mirror"}, "unknown padding 'mirror'"),
        ({"align_corners": 1}, "align_corners is 1"),
        ({"image": {"dtype": "uint8"}}, "the image's type is 'uint8'"),
        ({"image": {"layout": "nhwc"}}, "the image's layout is 'nhwc'"),
        ({"image": {"shape": (1, 4, 0, 5)}}, "the image's shape is"),
        ({"image": {"scale": None}}, "the image's scale is None"),
        ({"image": {"dtype": "float32"}}, "float32 has none"),
        ({"output": {"scale": float("nan")}}, "the output's scale is nan"),
        ({"output": {"qmax": 128}}, "do not fit int8"),
        ({"output": {"zero_point": 300}}, "zero point 300"),
        ({"output": {"zero_point": 0.5}}, "zero point and limits are 0.5"),
        ({"grid": {"layout": "channels_last"}}, "does not fit an image"),
        ({"output": {"shape": (1, 4, 5, 5)}}, "it would give [1, 4, 5, 11]"),
    ],
)
def test_an_inconsistent_job_is_refused(change: dict[str, Any], why: str) -> None:
    job = case(WAYS[0], LAYOUTS, SHAPES[2], ("int8", "int16", "int8")).job
    fields = {k: replace(getattr(job, k), **v) if isinstance(v, dict) else v for k, v in change.items()}
    with pytest.raises(ArtefactError) as e:
        replace(job, **fields)
    assert why in str(e.value)
