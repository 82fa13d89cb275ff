"""One file with a method for each size of a list: recorded over all, each executed on batches of its size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import ingot
from ingot.cli import main
from tests.support.requirements import need

SIZES = [(1, 3, 16, 16), (1, 3, 24, 20)]


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.stem(x)).mean((2, 3))
        return y


class Encoder(nn.Module):
    """Two inputs by name, and attention over a length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        y: torch.Tensor = self.out((q @ k.transpose(1, 2) + bias[:, None]).softmax(-1) @ v)
        return x + y


def images(*sizes: tuple[int, ...], scale: float = 1.0) -> list[tuple[torch.Tensor]]:
    return [(scale * torch.randn(s, generator=torch.Generator().manual_seed(i)),) for i, s in enumerate(sizes)]


def cnn(target: str = "xnnpack", **how: Any) -> ingot.Casting:
    torch.manual_seed(0)
    how = {"calibration": images(*SIZES, *SIZES), "shapes": SIZES, **how}
    return ingot.cast(Cnn().eval(), images(SIZES[0])[0], target=target, **how)


def encoder(target: str, lengths: tuple[int, ...]) -> ingot.Casting:
    torch.manual_seed(0)
    batches = [(torch.randn(1, n, 8), torch.randn(1, n)) for n in (*lengths, *lengths)]
    shapes = [{"x": (1, n, 8), "bias": (1, n)} for n in lengths]
    return ingot.cast(Encoder().eval(), batches[0], target=target, calibration=batches, shapes=shapes)


def is_whole(casting: ingot.Casting) -> bool:
    return len(casting.delegates) == 1 and not casting.host_ops


@pytest.mark.parametrize("target", ["xnnpack", "ethos-u55-128", "vgf"])
def test_each_size_is_a_method_that_was_executed(target: str) -> None:
    run_on = {"options": {"run_on": "reference-model"}} if target == "vgf" else {}
    casting = cnn(need(target), recipe=run_on)
    assert list(casting.methods) == ["forward", "forward_24x20"]
    for shape, method in zip(SIZES, casting.methods.values(), strict=True):
        assert is_whole(method)
        assert method.io.inputs[0].shape == shape
        check = (casting.check.methods if casting.check else {})[method.method]
        assert check.passed
        assert check.batches == 2
    assert ingot.verify(casting, images(*SIZES)).batches == 2


def test_an_encoder_at_three_lengths_is_three_delegates_of_one_file() -> None:
    casting = encoder(need("ethos-u85-256"), (4, 6, 9))
    assert [m.io.inputs[0].shape for m in casting.methods.values()] == [(1, n, 8) for n in (4, 6, 9)]
    assert all(map(is_whole, casting.methods.values()))
    assert "method forward_9x9: x float32 1×9×8, bias float32 1×9: 1 delegate, 0 host ops" in str(casting)


def test_scales_are_those_of_all_sizes() -> None:
    """The statistics are over the batches of all sizes, so inputs and outputs have one scale in all methods."""
    large = cnn(calibration=[*images(SIZES[0]), *images(SIZES[1], scale=9.0)], recipe={"integer_io": True, "range": "minmax", "inputs": [{"dtype": "int8"}]})  # fmt: skip
    first, second = (m.io.inputs[0] for m in large.methods.values())
    assert (first.scale, first.zero_point) == (second.scale, second.zero_point)
    assert first.scale is not None
    assert first.scale * 255 > 30


def test_weights_of_all_methods_are_in_the_xnnpack_file_once() -> None:
    def size(shapes: list[Any]) -> int:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
        batches = [(torch.randn(s),) for s in shapes]
        return len(ingot.cast(net.eval(), batches[0], target="xnnpack", calibration=batches, shapes=shapes).pte)

    assert size([(1, 256), (2, 256), (4, 256)]) < 1.5 * size([(1, 256)])


def test_a_size_without_a_batch_is_compared_with_its_graph() -> None:
    casting = cnn(calibration=images(SIZES[0], SIZES[0]))
    assert casting.check is not None
    assert casting.check.passed
    assert any("no batch has the size 1×3×24×20" in n for n in casting.check.notes)


class OddlySized(nn.Module):
    """Another graph where the size is no multiple of four."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] % 4:
            x = nn.functional.pad(x, (0, 4 - x.shape[-1] % 4)) * 0.5
        y: torch.Tensor = self.conv(x).relu()
        return y


def test_a_size_whose_graph_differs_has_a_plan_of_its_own() -> None:
    sizes = [(1, 3, 8, 8), (1, 3, 8, 10), (1, 3, 8, 12)]
    batches = images(*sizes, *sizes)
    casting = ingot.cast(OddlySized().eval(), batches[0], target="xnnpack", calibration=batches, shapes=sizes)
    assert casting.check is not None
    assert casting.check.passed
    assert isinstance(casting.plan.methods["forward_10"], ingot.Plan)
    assert isinstance(casting.plan.methods["forward_12"], str)
    assert any("forward_10 has a plan of its own: its graph is another one" in n for n in casting.notes)
    assert ingot.Plan.from_json(casting.plan.to_json()) == casting.plan
    with pytest.raises(ingot.IngotError, match="no calibration batch has the size 1×3×8×10"):
        ingot.cast(OddlySized().eval(), batches[0], target="xnnpack", calibration=images(sizes[0]), shapes=sizes)


def test_the_verbs_one_by_one_give_the_same_file() -> None:
    torch.manual_seed(0)
    program = ingot.capture(Cnn().eval(), images(SIZES[0])[0], shapes=SIZES)
    ranges = ingot.record(program, images(*SIZES, *SIZES))
    again = ingot.Ranges.from_json(ranges.to_json())
    assert again == ranges
    casting = ingot.lower(program, ingot.plan(program, ranges, "xnnpack"))
    assert casting.pte == cnn().pte
    half = images(*SIZES, *SIZES)
    parts = [ingot.record(program, some, shard=i) for i, some in enumerate((half[:2], half[2:]))]
    joined = parts[0].merge(parts[1])
    assert joined.methods["forward_24x20"].batches == 2


def test_a_saved_casting_is_the_same(tmp_path: Path) -> None:
    casting = cnn()
    again = ingot.Casting.load(casting.save_folder(tmp_path / "out"))
    assert again.check == casting.check
    assert list(again.methods) == list(casting.methods)
    assert again.others["forward_24x20"].io == casting.others["forward_24x20"].io
    batches = images(*SIZES)
    assert ingot.verify(again, batches).outputs == ingot.verify(casting, batches).outputs
    assert ingot.localize(again, batches).kind == "none"
    assert "methods" in (tmp_path / "out" / "report.json").read_text()


def test_a_wrong_method_is_found_out() -> None:
    """The verdict is over all methods: here the second one has another head."""
    casting = cnn()
    other = casting.others["forward_24x20"]
    torch.manual_seed(1)
    wrong = ingot.cast(Cnn().eval(), images(SIZES[1])[0], target="xnnpack", calibration=images(SIZES[1]))
    changed = replace(other, evidence=replace(wrong.needed_evidence, method=other.method))
    check = ingot.verify(replace(casting, others={"forward_24x20": changed}), images(*SIZES))
    assert not check.passed
    assert [n for n, c in check.methods.items() if not c.passed] == ["forward_24x20"]
    assert all(o.name.startswith("forward_24x20: ") for o in check.outputs if o.problem)


# ---- what is refused ----


def refused(**how: Any) -> str:
    with pytest.raises(ingot.IngotError) as raised:
        cnn(**how)
    return str(raised.value)


def test_a_batch_of_another_size() -> None:
    text = refused(calibration=images((1, 3, 40, 40)))
    assert "a batch of 1×3×40×40 has a size that is not in shapes · why: the sizes are 1×3×16×16; 1×3×24×20" in text


def test_a_size_that_the_model_refuses() -> None:
    text = refused(shapes=[SIZES[0], (1, 4, 16, 16)])
    assert "test_shapes.py" in text
    assert "with inputs of 1×4×16×16" in text
    assert "leave this size out of shapes=" in text


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([], "the list of shapes is empty"),
        ((1, 3, 16, 16), "shapes is one shape"),
        ([(1, 3, 0, 16)], "is no shape"),
        ([{"y": (1, 3, 16, 16)}], "shapes names 'y', which is no input"),
        ([((1, 3, 16, 16), (1, 2))], "2 shapes, the model takes 1"),
        ([(1, 3, 16)], "does not fit the input"),
    ],
)
def test_what_is_no_list_of_shapes(shapes: Any, words: str) -> None:
    assert words in refused(shapes=shapes)


def test_what_contradicts() -> None:
    dynamic = ({2: Dim("h", min=8, max=64)},)
    assert "dynamic_shapes and shapes contradict each other" in refused(dynamic_shapes=dynamic)
    assert "shapes with weights= is not offered" in refused(weights="8da4w")
    exported = torch.export.export(Cnn().eval(), images(SIZES[0])[0])
    with pytest.raises(ingot.IngotError, match="shapes= needs the model itself"):
        ingot.cast(exported, target="xnnpack", calibration=images(SIZES[0]), shapes=SIZES)


def test_state_has_one_size() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x.mean())
            return x + self.seen

    with pytest.raises(ingot.IngotError, match="a model with state has one size"):
        ingot.capture(Counter(), (torch.randn(1, 4),), shapes=[(1, 4), (1, 8)])


def test_a_target_of_fixed_shapes_names_the_way_out() -> None:
    height = Dim("h", min=8, max=64)
    text = refused(
        target=need("ethos-u55-128"), shapes=None, dynamic_shapes=({2: height},), calibration=images(SIZES[0])
    )
    assert "shapes=[…] instead of dynamic_shapes" in text


# ---- the shell ----

NET = """
import torch
from torch import nn

SIZES = [(1, 3, 16, 16), (1, 3, 24, 20)]

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), (torch.zeros(SIZES[0]),)

def batches():
    return [(torch.randn(s),) for s in (*SIZES, *SIZES)]
"""


def test_in_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, out = tmp_path / "net.py", tmp_path / "out"
    net.write_text(NET)
    data = ["--shapes", "1x3x16x16", "--shapes", "1x3x24x20"]
    cast = ["cast", f"{net}:build", "--target", "xnnpack", "--calibrate", f"{net}:batches", *data, "-o", str(out)]
    assert main(cast) == 0
    assert "method forward_24x20: input_1 float32 1×3×24×20" in capsys.readouterr().out
    assert (out / "forward_24x20" / "plan.json").exists()
    assert not (out / "forward_24x20" / "model.pte").exists()
    assert main(["verify", str(out), "--data", f"{net}:batches"]) == 0
    assert main(["cast", *cast[1:-3], "1x3,4", "-o", str(out)]) == 2


def test_random_sizes_of_random_nets() -> None:
    """Every size of a list agrees with its graph, whatever the sizes."""
    random = torch.Generator().manual_seed(3)
    for _ in range(2):
        sizes = [(1, 3, *(int(n) for n in torch.randint(9, 30, (2,), generator=random))) for _ in range(2)]
        casting = cnn(shapes=sizes, calibration=images(*sizes))
        assert casting.check is not None
        assert casting.check.passed, sizes
        assert len(casting.methods) == len({s[2:] for s in sizes})


def test_a_goal_with_several_sizes_is_refused_before_calibration() -> None:
    read = list[int]()

    def batches() -> Any:
        for n in range(4):
            read.append(n)
            yield (torch.randn(SIZES[0]),)

    goal = ingot.Goal("cosine", [(torch.randn(SIZES[0]),)], bar=0.9)
    with pytest.raises(ingot.IngotError, match="a goal is measured at one size"):
        ingot.cast(
            Cnn().eval(), (torch.randn(SIZES[0]),), target="xnnpack", calibration=batches(), goal=goal, shapes=SIZES
        )
    assert read == []
