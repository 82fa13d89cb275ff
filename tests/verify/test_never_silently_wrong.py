"""Regressions: models that were once cast wrongly without an error, or ended in a bare traceback. Right or refused now."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import ingot
from ingot.plan.plan_data import QuantizationPoint
from ingot.verify.check import run_artefact, run_graph
from ingot.verify.metrics import sqnr


class Model(nn.Module):
    """forward is a function of the module and its inputs; keywords become submodules or buffers."""

    def __init__(self, run: Any, **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.register_buffer(name, part) if isinstance(part, torch.Tensor) else self.add_module(name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def cast(model: nn.Module, batches: Any, **options: Any) -> ingot.Casting:
    return ingot.cast(model.eval(), batches[0], target="xnnpack", calibration=batches, **options)


def vectors(*shape: int, n: int = 4) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(*shape),) for _ in range(n)]


def elman(s: Any, x: Any) -> Any:
    y = torch.tanh(s.a(x) + s.b(s.h))
    s.h.copy_(y)
    return y * 2


def integrator(s: Any, x: Any) -> Any:
    s.h.mul_(0.9).add_(s.a(x))
    return s.b(s.h)


@pytest.mark.parametrize("run", [elman, integrator])
def test_state_is_carried_from_step_to_step(run: Any) -> None:
    model = Model(run, a=nn.Linear(8, 16), b=nn.Linear(16, 16, bias=False), h=torch.zeros(1, 16))
    check = cast(model, vectors(1, 8, n=6)).check
    assert check.passed
    assert check.outputs[0].sqnr_db > 30


def test_an_index_that_is_state_is_not_frozen() -> None:
    def run(s: Any, x: Any) -> Any:
        y = x[:, s.i]
        s.i.copy_(s.i.roll(1))
        return y

    model = Model(run, i=torch.arange(4))
    program = ingot.capture(model, (torch.arange(4.0)[None],))
    outputs = [program.module(torch.arange(4.0)[None])[0].tolist() for _ in range(2)]
    assert outputs == [[[0, 1, 2, 3]], [[3, 0, 1, 2]]]


def test_infinite_masks_survive() -> None:
    mask = torch.zeros(4, 8)
    mask[:, ::3] = -torch.inf
    model = Model(lambda s, x, m: s.a(x) + m, a=nn.Linear(16, 8))
    casting = cast(model, [(x, mask) for (x,) in vectors(4, 16)])
    assert casting.check.passed
    assert "not finite" in casting.plan.why("add")


@pytest.mark.parametrize("never", [-torch.inf, -1e9, torch.finfo(torch.float32).min])
def test_constant_masks_in_a_softmax(never: float) -> None:
    mask = torch.full((5, 5), never).triu(1)
    check = cast(Model(lambda s, x: (s.a(x) + s.m).softmax(-1), a=nn.Linear(16, 5), m=mask), vectors(5, 16)).check
    assert check.outputs[0].sqnr_db > 30


def boxes_and_scores(s: Any, x: Any) -> Any:
    return torch.cat([s.boxes(x) * 640, s.scores(x)], 1)


def detector() -> nn.Module:
    return Model(boxes_and_scores, boxes=nn.Conv2d(4, 4, 1), scores=nn.Conv2d(4, 4, 1))


def boxes_as_integers(s: Any, x: Any) -> Any:
    """One convolution makes both; what comes after it gives each part a unit of its own."""
    y = s.both(x)
    return torch.cat([(y[:, :4] * 640).flatten(2), y[:, 4:].sigmoid().flatten(2)], 1).transpose(1, 2)


def yolo() -> nn.Module:
    return Model(boxes_as_integers, both=nn.Conv2d(4, 8, 1))


DETECTED = [(torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(i)),) for i in range(4)]


def detector_parts(casting: ingot.Casting) -> list[float]:
    """SQNR of boxes and of scores, computed from the outputs themselves."""
    evidence = casting.needed_evidence
    runs = (run_graph(evidence.program.reference, DETECTED, {}), run_artefact(casting.pte, evidence, DETECTED))
    want, got = (torch.cat([o[0] for o in run]) for run in runs)
    return [sqnr(w.double(), g.double()) for w, g in zip(want.split(4, 1), got.split(4, 1), strict=True)]


def test_large_boxes_keep_resolution_for_small_scores() -> None:
    casting = cast(detector(), DETECTED)
    assert len(casting.delegates) == 1
    assert min(detector_parts(casting)) > 30
    assert casting.check.outputs[0].groups_db == pytest.approx(detector_parts(casting), abs=0.01)
    assert casting.check.outputs[0].worst_channel_db > 25
    assert "a shared int8 scale would cost its smallest operand" in casting.plan.why("cat")


@pytest.mark.parametrize("net", [detector, yolo])
def test_scores_beside_boxes_are_judged(net: Any) -> None:
    """The file of a net with negated scores: the whole output is still at 40 dB."""
    torch.manual_seed(0)
    good, wrong = net(), net()
    wrong.load_state_dict(good.state_dict())
    with torch.no_grad():
        part = wrong.scores if net is detector else wrong.both
        for p in part.parameters():
            p[-4:] *= -1
    castings = [cast(m, DETECTED) for m in (good, wrong)]
    mixed = dataclasses.replace(castings[0], pte=castings[1].pte)
    check = ingot.verify(mixed, DETECTED)
    assert check.outputs[0].sqnr_db > 35
    assert not check.passed
    assert check.outputs[0].disagrees
    assert "artefact and quantized graph disagree: SQNR" in check.outputs[0].problem
    assert "chance" in check.outputs[0].problem


def test_a_plan_with_one_coarse_scale_for_both_fails() -> None:
    program = ingot.capture(detector().eval(), DETECTED[0])
    plan = ingot.plan(program, ingot.record(program, DETECTED), "xnnpack")
    coarse = plan.qparams("mul_tensor")
    points = (QuantizationPoint("conv2d_1"), QuantizationPoint("mul_tensor"))
    coarsened = tuple(dataclasses.replace(d, qparams=coarse) if d.point in points else d for d in plan)
    check = ingot.verify(ingot.lower(program, dataclasses.replace(plan, decisions=coarsened)), DETECTED)
    assert not check.passed
    assert "joined group 1 of 2 is far from the float model: SQNR" in check.outputs[0].problem
    assert not check.outputs[0].disagrees


def test_a_pruned_channel_with_a_bias() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    with torch.no_grad():
        model[0].weight[3] = 0
        model[0].bias[3] = 2.0
    batches = [(torch.rand(4, 8),) for _ in range(4)]
    assert cast(model, batches).check.outputs[0].sqnr_db > 30


@pytest.mark.parametrize(
    ("run", "x"),
    [
        (lambda s, x: s.l(x.float()), torch.randn(2, 8).half()),
        (lambda s, x: s.l(x).double(), torch.randn(2, 8)),
        (lambda s, x: s.l(x.half().float() + 1), torch.randn(2, 8)),
    ],
    ids=["half in", "double out", "through half"],
)
def test_casts_between_float_types_stay(run: Any, x: torch.Tensor) -> None:
    program = ingot.capture(Model(run, l=nn.Linear(8, 4)), (x,))
    torch.testing.assert_close(program.module(x)[0], program.reference(x)[0])


def test_batch_norm_over_tokens_is_not_folded_wrongly() -> None:
    for width in (12, 5):
        model = Model(lambda s, x: s.bn(s.l(x)), l=nn.Linear(16, width), bn=nn.BatchNorm1d(5))
        x = torch.randn(2, 5, 16)
        model.train()(x)
        program = ingot.capture(model.eval(), (x,))
        torch.testing.assert_close(program.module(x)[0], model(x))


@pytest.mark.parametrize("dim", [torch.export.Dim("b"), torch.export.Dim.AUTO])
def test_dimensions_without_an_upper_bound(dim: Any) -> None:
    program = ingot.capture(nn.Linear(8, 4), (torch.randn(3, 8),), dynamic_shapes=({0: dim},))
    assert program.flatten((torch.randn(7, 8),))[0].shape == (7, 8)


@pytest.mark.parametrize("run", [lambda s, x: (None, s.l(x)), lambda s, x: (3, s.l(x), s.l(x) + 1)])
def test_returned_nones_and_numbers(run: Any) -> None:
    check = cast(Model(run, l=nn.Linear(8, 4)), vectors(2, 8)).check
    assert check.passed
    assert len(check.outputs) >= 1


def test_a_scalar_head() -> None:
    assert cast(Model(lambda s, x: s.l(x).squeeze() * 2.0 + 1.0, l=nn.Linear(8, 1)), vectors(1, 8)).check.passed


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda s, x: s.l(x.add_(1.0)), "writes into its input"),
        (lambda s, x: s.l(x) + torch.randn_like(x[:, :4]), "draws random numbers"),
        (lambda s, x: s.l(F.dropout(x, 0.5, training=True)), "draws random numbers"),
    ],
)
def test_refused_with_a_reason(run: Any, words: str) -> None:
    with pytest.raises(ingot.CaptureError, match=words):
        ingot.capture(Model(run, l=nn.Linear(8, 4)), (torch.randn(2, 8),))


def test_batches_in_another_layout_or_order() -> None:
    conv = nn.Conv2d(3, 4, 3)
    images = [torch.randn(1, 3, 8, 8) for _ in range(4)]
    last = [(x.to(memory_format=torch.channels_last),) for x in images]
    assert ingot.cast(conv, (images[0],), target="xnnpack", calibration=last).check.passed
    assert ingot.cast(conv, last[0], target="xnnpack", calibration=[(x,) for x in images]).check.passed


def test_dict_inputs_by_key_not_by_order() -> None:
    model = Model(lambda s, d: s.l(d["x"]) - d["y"], l=nn.Linear(4, 4))
    x, y = torch.randn(2, 4), torch.randn(2, 4) * 100
    program = ingot.capture(model, ({"x": x, "y": y},))
    assert all(torch.equal(a, b) for a, b in zip(program.flatten(({"y": y, "x": x},)), (x, y), strict=True))
    with pytest.raises(ingot.InputError, match="no input at"):
        program.flatten(({"x": x, "z": y},))


def test_ranges_of_another_checkpoint_are_refused() -> None:
    torch.manual_seed(0)
    first, second = (ingot.capture(nn.Linear(4, 4), (torch.randn(1, 4),)) for _ in range(2))
    assert first.fingerprint != second.fingerprint


def test_scale_sharing_does_not_accumulate_along_a_chain() -> None:
    """Each pair loses little by a shared scale; one scale for all would cost the first value two bits."""

    def run(s: Any, x: Any) -> Any:
        y = s.a(x)
        steps = [y * 1.16**i for i in range(12)]
        joined = [torch.cat([p, q], 1) for p, q in pairwise(steps)]
        return [s.b(v) for v in steps], [j.relu() for j in joined]

    program = ingot.capture(Model(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), (torch.randn(4, 8),))
    plan = ingot.plan(program, ingot.record(program, vectors(4, 8)), "xnnpack")
    scales = [d.qparams.scale for d in plan if d.point.operand is None and d.op == "aten.mul.Tensor"]
    assert max(scales) > 3 * min(scales)


def test_ops_that_stay_float_are_noted() -> None:
    casting = cast(nn.Sequential(nn.Linear(4, 4)).double(), [(torch.randn(2, 4).double(),) for _ in range(3)])
    assert any("stay float" in n for n in casting.notes)


@pytest.mark.parametrize("cell", [nn.GRUCell(8, 6), nn.LSTMCell(8, 6), nn.RNNCell(8, 6)])
def test_cells_are_quantized(cell: nn.Module) -> None:
    program = ingot.capture(Model(lambda s, x: s.c(x), c=cell), (torch.randn(2, 8),))
    plan = ingot.plan(program, ingot.record(program, vectors(2, 8)), "xnnpack")
    assert sum("linear" in d.op and d.point.operand == 1 and d.qparams is not None for d in plan) >= 1


def test_padding_in_words_is_quantized() -> None:
    model = nn.Conv2d(3, 4, 4, padding="same")
    casting = cast(model, [(torch.randn(1, 3, 8, 8),) for _ in range(3)])
    assert not any("stay float" in n for n in casting.notes)
    assert len(casting.delegates) == 1


def test_keep_keeps_what_does_not_run() -> None:
    casting = cast(
        Model(lambda s, x: torch.erfinv(torch.tanh(s.l(x))), l=nn.Linear(8, 4)), vectors(2, 8), on_mismatch="keep"
    )
    assert not casting.check.passed
    assert "nothing can run erfinv" in casting.check.culprit
    assert casting.pte


def test_uninitialized_memory_sets_no_range() -> None:
    """Circular padding writes into an empty tensor, slice by slice."""
    poison = [torch.full((1, 4, 16, 15), 1e30) for _ in range(64)]
    del poison  # the next allocation may reuse this memory
    model = Model(lambda s, x: F.pad(s.c(x), (1, 2, 3, 1), mode="circular"), c=nn.Conv2d(3, 4, 3, padding=1))
    program = ingot.capture(model, (torch.randn(1, 3, 12, 12),))
    empties = [n for n in program.module.graph.nodes if n.op == "get_attr" and "empty" in n.target]
    assert empties
    assert not any(program.module.get_buffer(n.target).any() for n in empties)


def test_verify_needs_batches() -> None:
    with pytest.raises(ingot.InputError, match="greater than or equal to 1"):
        ingot.Recipe(verify_batches=0)
