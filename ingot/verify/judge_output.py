"""The verdict on one output: float model, quantized graph and artefact, slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ingot.capture.element_origin import Origin
from ingot.core.artefact import OutputCheck, SliceCheck
from ingot.verify.chance import count_chance
from ingot.verify.integer_outputs import RUNS, Rerun, integer_mismatch
from ingot.verify.judge_slices import SIGNIFICANT, Suspect, suspects
from ingot.verify.mask_fills import hidden_fills
from ingot.verify.metrics import EXACT_DB, FLOAT_MARGIN, as_double, float_rounding, measure, power_ratio_db
from ingot.verify.slices import Differences, Slices, View, slice_sums, summed, views, with_noisy_runs

DOUBTFUL = 1e-2  # of integers: a count that is less likely is more than chance
UNSURE = 0.5  # below this chance the graph is run again with rounding noise, to know that noise better


@dataclass(frozen=True)
class Compared:
    """One output by batch, in the three programs, and what is known of it."""

    reference: list[Tensor]
    quantized: list[Tensor]
    artefact: list[Tensor]
    origins: list[Origin] = field(default_factory=list)  # empty: unknown
    in_double: list[Tensor] = field(default_factory=list)  # the float model in double precision, of the first batches
    rerun: Rerun | None = None  # the quantized graph, run once more with rounding noise
    noisy_reference: Rerun | None = None  # the float model, run once more with rounding noise


def judge_output(name: str, given: Compared, min_sqnr_db: float) -> OutputCheck:
    """Compare the artefact with the float model and with its quantized graph."""
    given = _without_mask_fills(given)
    to_float, to_graph = measure(given.reference, given.artefact), measure(given.quantized, given.artefact)
    check = OutputCheck(name, to_float.sqnr_db, to_float.max_abs_error, to_float.sqnr_db, to_graph.sqnr_db)
    defect = to_float.defect or _dtype_defect(given)
    if defect is not None or not given.reference[0].numel():
        ours = defect is not None and measure(given.reference, given.quantized).defect is None
        return replace(check, problem=defect, disagrees=ours)
    if not given.reference[0].dtype.is_floating_point and not given.reference[0].is_complex():
        mismatch = integer_mismatch(given.quantized, given.artefact, given.rerun)
        far = _far(check.sqnr_db, min_sqnr_db) if _too_many_differ(given, min_sqnr_db) else None
        return replace(check, problem=mismatch or far, disagrees=mismatch is not None)
    return _judge_numbers(check, given, min_sqnr_db)


def _without_mask_fills(given: Compared) -> Compared:
    if not given.reference[0].dtype.is_floating_point:
        return given
    hide, rerun, noisy = (
        hidden_fills(given.reference, given.quantized, given.artefact),
        given.rerun,
        given.noisy_reference,
    )
    if hide is None:
        return given
    return replace(
        given,
        reference=hide(given.reference),
        quantized=hide(given.quantized),
        artefact=hide(given.artefact),
        in_double=hide(given.in_double),
        rerun=None if rerun is None else lambda run: hide(rerun(run)),
        noisy_reference=None if noisy is None else lambda run: hide(noisy(run)),
    )


def _too_many_differ(given: Compared, min_sqnr_db: float) -> bool:
    """Of integers: more than the threshold's share, and by more than chance: one of six says little.

    What some run of the float model with rounding noise gives is a tie of the model itself.
    """
    wrong = [w != g for w, g in zip(given.reference, given.artefact, strict=True)]
    if given.noisy_reference is not None and _is_too_often(wrong, min_sqnr_db):
        for run in range(RUNS):
            each = zip(wrong, given.noisy_reference(run), given.artefact, strict=True)
            wrong = [w & (n != g) for w, n, g in each]
    return _is_too_often(wrong, min_sqnr_db)


def _is_too_often(wrong: Sequence[Tensor], min_sqnr_db: float) -> bool:
    count, of = sum(int(w.sum()) for w in wrong), sum(w.numel() for w in wrong)
    return count_chance(count, of, 10 ** (-min_sqnr_db / 10)) < DOUBTFUL


def disagreement_with_graph(given: Compared) -> str | None:
    """How an output or an intermediate value disagrees with the quantized graph; None if it agrees."""
    if (defect := measure(given.quantized, given.artefact).defect) is not None:
        return defect
    if not given.reference[0].dtype.is_floating_point or not given.reference[0].numel():
        return None
    differences, _ = in_noise_units(given)
    return _disagreement(list(suspects(differences, _sums(differences))))


def _judge_numbers(check: OutputCheck, given: Compared, min_sqnr_db: float) -> OutputCheck:
    differences, groups = in_noise_units(given)
    sums = _sums(differences)
    found = list(suspects(differences, sums))
    if given.rerun is not None and any(s.against == "graph" and s.slice.chance < UNSURE for s in found):
        noisy = [_noisy_difference(given.rerun(i), given, differences) for i in range(RUNS)]
        differences = replace(differences, noisy=noisy)
        found = list(suspects(differences, [with_noisy_runs(differences, s) for s in sums]))
    found.sort(key=lambda s: s.slice.chance)
    mismatch = _disagreement(found)
    far = _far(check.sqnr_db, min_sqnr_db) or _far_group(groups, min_sqnr_db)
    far = (None if far and _is_rounding_noise(given, groups, min_sqnr_db) else far) or _ruined(found)
    return replace(
        check, problem=mismatch or far, disagrees=mismatch is not None, worst=found[0].slice if found else None,
        worst_channel_db=min([check.sqnr_db, *map(_worst_db, _channels_of(sums))]),
        groups_db=groups if len(groups) > 1 else (),
    )  # fmt: skip


def _is_rounding_noise(given: Compared, groups: Sequence[float], threshold: float) -> bool:
    """In each group that is far, float arithmetic itself errs as much: the deviation of equal numbers, say."""
    if given.noisy_reference is None:
        return False
    view = _group_view(list(map(as_double, given.reference)), _known_origins(given))
    error, noise = (
        slice_sums(map(_finite_square, side, given.reference), view)
        for side in (given.artefact, given.noisy_reference(0))
    )
    return all(bool(error[i] <= noise[i]) for i, db in enumerate(groups) if not db >= threshold)


def _finite_square(a: Tensor, b: Tensor) -> Tensor:
    square = _square_of_difference(as_double(a), as_double(b))
    return torch.where(torch.isfinite(square), square, 0.0)


def _sums(differences: Differences) -> list[Slices]:
    return [summed(differences, v) for v in views(differences.graph, differences.origins)]


def _noisy_difference(run: Sequence[Tensor], given: Compared, differences: Differences) -> list[Tensor]:
    """What rounding noise alone changes in the quantized graph, in units of its noise."""
    each = zip(run, given.quantized, differences.unit, differences.finite, strict=True)
    return [torch.where(ok, (as_double(x) - as_double(y)) / unit, 0.0) for x, y, unit, ok in each]


def _dtype_defect(given: Compared) -> str | None:
    want, got = given.reference[0].dtype, given.artefact[0].dtype
    return None if want == got else f"dtype {got} instead of {want}"


def _far(db: float, threshold: float) -> str | None:
    return None if db >= threshold else f"far from the float model: SQNR {db:.1f} dB, threshold {threshold:g} dB"


def _far_group(groups: Sequence[float], threshold: float) -> str | None:
    """Scores beside boxes: each group of joined channels has a unit of its own."""
    bad = [(db, i) for i, db in enumerate(groups) if not db >= threshold]
    if not bad:
        return None
    db, i = min(bad)
    return f"joined group {i} of {len(groups)} is {_far(db, threshold)}"


def _disagreement(found: Sequence[Suspect]) -> str | None:
    bad = [s for s in found if s.against == "graph" and s.slice.chance < SIGNIFICANT]
    if not bad:
        return None
    worst = min(bad, key=lambda s: (s.slice.chance, -s.slice.noise_ratio))
    s = worst.slice
    return (
        f"artefact and quantized graph disagree: SQNR {s.graph_db:.1f} dB in {_place(s)}, {s.noise_ratio:.3g} times "
        f"its rounding noise (limit 2), its error {worst.error_ratio:.3g} times that of the graph (limit 1.41); "
        f"{_evidence(s)}"
    )


def _ruined(found: Sequence[Suspect]) -> str | None:
    bad = [s.slice for s in found if s.against == "float" and s.slice.chance < SIGNIFICANT]
    if not bad:
        return None
    s = min(bad, key=lambda s: (s.chance, s.float_db))
    lost = f"quantization has ruined {_place(s)}: its error is larger than what varies in it, SQNR {s.float_db:.1f} dB"
    return f"{lost}; {_evidence(s)}"


def _place(s: SliceCheck) -> str:
    """`channel 3 of 85`, `index 3 of 85 along axis 2`, `the output`; and in which of the joined groups."""
    kind, _, inside = s.kind.partition(" in ")
    group = f" of joined group {s.group}" if inside else ""
    if kind in ("output", "group"):
        return "the output" if kind == "output" else f"joined group {s.group}"
    return (
        f"{kind} {s.index} of {s.of}{group}" if kind == "channel" else f"index {s.index} of {s.of} along {kind}{group}"
    )


def _evidence(s: SliceCheck) -> str:
    return f"{s.values} values, {s.samples:.3g} independent, chance {s.chance:.0e}"


def _channels_of(sums: Sequence[Slices]) -> list[Slices]:
    """The slices that are channels; along axis 1 where channels are not known."""
    kinds = [s.view.kind.removesuffix(" in group") for s in sums]
    kind = next((k for k in ("channel", "axis 1") if k in kinds), "output")
    most = max(s.view.groups for s in sums)
    return [s for s, k in zip(sums, kinds, strict=True) if k == kind and s.view.groups == most]


def _worst_db(slices: Slices) -> float:
    """The lowest SQNR to the float model of a slice whose signal is above the noise of its group."""
    count = slices.count.clamp(min=1)
    used = (slices.count > 0) & (slices.signal > count) & (slices.signal > slices.floor)
    ratio = slices.error[used] / slices.signal[used]
    return float((-10 * ratio.clamp(min=10 ** (-EXACT_DB / 10)).log10()).min()) if len(ratio) else EXACT_DB


def in_noise_units(given: Compared) -> tuple[Differences, tuple[float, ...]]:
    """The differences, each in units of the noise of its group; and the SQNR of each group to the float model."""
    f, g, a = ([as_double(t) for t in side] for side in (given.reference, given.quantized, given.artefact))
    origins = _known_origins(given)
    finite = [torch.isfinite(x) & torch.isfinite(y) for x, y in zip(f, g, strict=True)]
    f, g, a = ([torch.where(ok, t, 0.0) for t, ok in zip(side, finite, strict=True)] for side in (f, g, a))
    view = _group_view(f, origins)
    count = slice_sums(iter(finite), view).clamp(min=1)
    noise, error, signal = (
        slice_sums(squares, view) / count
        for squares in (map(_square_of_difference, g, f), map(_square_of_difference, a, f), map(torch.square, f))
    )
    floor = FLOAT_MARGIN**2 * torch.maximum(
        _float_noise(given, view), float_rounding(given.reference[0].dtype) ** 2 * signal
    )
    unit = torch.where(noise > 0, noise, torch.where(floor > 0, floor, 1.0)).sqrt()
    units, floors = ([_at(values, k) for k in view.keys] for values in (unit, floor.sqrt()))
    graph, rounding, float_, limits = (
        list(map(torch.div, side, units)) for side in (map(torch.sub, a, g), map(torch.sub, g, f), f, floors)
    )
    made = Differences(graph, rounding, float_, limits, finite, list(origins), units)
    each = zip(signal.tolist(), error.tolist(), floor.tolist(), strict=True)
    return made, tuple(EXACT_DB if e <= limit else power_ratio_db(s, e) for s, e, limit in each)


def _known_origins(given: Compared) -> list[Origin]:
    known = given.origins and not given.reference[0].is_complex()
    return given.origins if known else [Origin()] * len(given.reference)


def _group_view(like: Sequence[Tensor], origins: Sequence[Origin]) -> View:
    groups = [
        torch.zeros((), dtype=torch.int64).expand(t.shape) if o.groups is None else o.groups
        for t, o in zip(like, origins, strict=True)
    ]
    return View("group", groups, 1, 1 + max(int(k.max()) if k.numel() else 0 for k in groups))


def _at(values: Tensor, keys: Tensor) -> Tensor:
    """The value of each element's group; of a single group without memory for each element."""
    return values[0].expand(keys.shape) if len(values) == 1 else values[keys]


def _square_of_difference(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square()


def _float_noise(given: Compared, view: View) -> Tensor:
    """By group: the mean square between the float model in float32 and in double precision."""
    pairs = [(as_double(x), as_double(y)) for x, y in zip(given.reference, given.in_double, strict=False)]
    ok = [torch.isfinite(x) & torch.isfinite(y) for x, y in pairs]
    some = replace(view, keys=view.keys[: len(pairs)])
    squares = (torch.where(k, x - y, 0.0).square() for (x, y), k in zip(pairs, ok, strict=True))
    return slice_sums(squares, some) / slice_sums(iter(ok), some).clamp(min=1)
