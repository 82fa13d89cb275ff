"""What users hand over as inputs: keyword arguments, dicts, DataLoaders, exported programs, other devices."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import ingot


class Net(nn.Module):
    """Called as Hugging Face models are: by keyword, with optional arguments and a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, unused: Tensor | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        y = self.up(x).relu()
        return {"logits": self.down(y if mask is None else y * mask)}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def batch(seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(2, 8, generator=g), "mask": torch.rand(2, 16, generator=g)}


BATCHES = [batch(i) for i in range(6)]


def plan_of(net: Any, example: Any, batches: Any) -> dict[str, Any]:
    """What every value is stored as: equal for every way of handing over the same batches."""
    program = ingot.capture(net, example)
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack")
    return {str(d.point): d.qparams for d in plan}


def test_every_form_of_a_batch_is_the_same_batch(net: Net) -> None:
    wanted = plan_of(net, BATCHES[0], BATCHES)
    positional = [ingot.Inputs(b["x"], mask=b["mask"]) for b in BATCHES]
    assert plan_of(net, positional[0], positional) == wanted
    assert plan_of(net, UserDict(BATCHES[0]), [UserDict(b) for b in BATCHES]) == wanted  # as BatchEncoding is
    reordered = [{"mask": b["mask"], "x": b["x"]} for b in BATCHES]
    assert plan_of(net, BATCHES[0], reordered) == wanted
    labelled = [{**b, "labels": torch.zeros(2)} for b in BATCHES]
    assert plan_of(net, BATCHES[0], labelled) == wanted


def test_a_loader_of_dicts_calibrates_and_validates(net: Net) -> None:
    samples = [{k: v[0] for k, v in batch(i).items()} for i in range(12)]
    loader: DataLoader[dict[str, Tensor]] = DataLoader(samples, batch_size=2)  # type: ignore[arg-type]
    casting = ingot.cast(net, BATCHES[0], target="xnnpack", calibration=loader, validation=loader)
    assert casting.check is not None
    assert casting.check.passed
    assert casting.check.batches == 6  # all of the validation data
    assert [i.name for i in casting.io.inputs] == ["x", "mask"]


def test_verify_runs_every_batch_it_is_given(net: Net) -> None:
    casting = ingot.cast(net, BATCHES[0], target="xnnpack", calibration=BATCHES, recipe={"verify_batches": 2})
    assert casting.check is not None
    assert casting.check.batches == 2
    assert ingot.verify(casting, [batch(i) for i in range(11)]).batches == 11


def test_a_loader_that_reuses_its_memory(net: Net) -> None:
    """The batches that are verified on are copies: else all would be the last one."""
    memory = {k: v.clone() for k, v in BATCHES[0].items()}

    def reused() -> Any:
        for b in BATCHES:
            for k, v in b.items():
                memory[k].copy_(v)
            yield memory

    own = ingot.cast(net, BATCHES[0], target="xnnpack", calibration=BATCHES)
    shared = ingot.cast(net, BATCHES[0], target="xnnpack", calibration=reused())
    assert own.check == shared.check


def test_batches_made_in_inference_mode(net: Net) -> None:
    with torch.inference_mode():
        made = [{k: v.clone() for k, v in b.items()} for b in BATCHES]
    assert plan_of(net, BATCHES[0], made) == plan_of(net, BATCHES[0], BATCHES)


@pytest.mark.parametrize("form", ["program", "module"])
def test_exported_programs(net: Net, form: str) -> None:
    """The program itself brings its example; its module is captured like any other, in the mode it was exported in."""
    exported = torch.export.export(net, (), BATCHES[0])
    if form == "program":
        casting = ingot.cast(exported, target="xnnpack", calibration=BATCHES)
    else:
        casting = ingot.cast(exported.module(), BATCHES[0], target="xnnpack", calibration=BATCHES)
    wanted = ingot.cast(net, BATCHES[0], target="xnnpack", calibration=BATCHES)
    assert casting.pte == wanted.pte
    assert not any("training mode" in n for n in casting.notes)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([{"x": BATCHES[0]["x"]}], "takes 2 inputs, the batch has 1"),
        ([(BATCHES[0]["x"], BATCHES[0]["mask"])], r"no input at \[1\]\['(x|mask)'\]"),
        ([{"x": BATCHES[0]["x"], "mask": 3}], "mask.* must be a tensor"),
        (["x"], "mapping of keyword arguments, not str"),
    ],
)
def test_batches_that_do_not_fit(net: Net, batches: Any, said: str) -> None:
    with pytest.raises(ingot.InputError, match=said):
        ingot.cast(net, BATCHES[0], target="xnnpack", calibration=batches)


def test_a_model_without_example_inputs_is_refused(net: Net) -> None:
    with pytest.raises(ingot.InputError, match="no example inputs"):
        ingot.cast(net, target="xnnpack", calibration=BATCHES)


def test_a_model_on_the_meta_device_is_refused() -> None:
    with pytest.raises(ingot.InputError, match=r"meta device.*no weights.*load_state_dict"):
        ingot.capture(Net().to("meta"), BATCHES[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_model_on_an_accelerator_is_copied_to_the_cpu(net: Net) -> None:
    moved = Net().to("cuda")
    program = ingot.capture(moved, {k: v.cuda() for k, v in BATCHES[0].items()})
    assert any("was on cuda" in n for n in program.notes)
    assert next(moved.parameters()).is_cuda
