"""What became of one program. The judge does not use Ingot's own check: it runs the artefact by itself and compares it
with the model as written; where it is far from it, a plain fake quantization of the same program says whether any
8-bit program would be."""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import ingot
from fuzz.net import FuzzNet, call_arguments, input_tensors
from fuzz.outcome import Outcome
from fuzz.program import FuzzProgram
from ingot.config.tensor_specs import Spec, spec_from

MIN_DB, MIN_FLOAT_DB = 9.0, 45.0  # of an artefact that passed Ingot's check; of one in float
WELL_CONDITIONED_DB = 20.0  # plain fake quantization reaches this, so a cast that fails is no victim of its model
EXACT_DB = 200.0
CHANCE = 1e-3  # of so many integers that differ
ROUNDING = 2.0**-20  # of float32 kernels that sum in another order
NOISY_RUNS = 8  # where values are near ties, one run may be lucky


def judge(program: FuzzProgram) -> Outcome:
    start = time.perf_counter()
    facts: dict[str, Any] = {"seed": program.seed, "target": program.target, "steps": len(program.steps)}
    try:
        expected = eager_outputs(program)
    except Exception as e:
        return Outcome(**facts, kind="invalid", reason=type(e).__name__, text=str(e)[:300])
    if not all(_finite(t) for batch in expected for t in batch):
        return Outcome(**facts, kind="invalid", reason="not finite")
    facts["seconds"] = {"eager": time.perf_counter() - start}
    return _cast_and_judge(program, expected, facts)


def _cast_and_judge(program: FuzzProgram, expected: list[list[Tensor]], facts: dict[str, Any]) -> Outcome:
    start = time.perf_counter()
    try:
        casting = cast_program(program)
    except ingot.IngotError as e:
        facts["seconds"]["cast"] = time.perf_counter() - start
        return Outcome(**facts, kind="refused", reason=reason_of(e), text=str(e)[:1500])
    except Exception as e:
        text = "".join(traceback.format_exception(e))[-3500:]
        return Outcome(**facts, kind="crashed", reason=reason_of(e), text=text)
    facts["seconds"] |= {**casting.timings, "cast": time.perf_counter() - start}
    facts |= {"delegates": len(casting.delegates), "host_ops": len(casting.host_ops)}
    start = time.perf_counter()
    outcome = _judged(program, casting, expected, facts)
    outcome.seconds["judge"] = time.perf_counter() - start
    return outcome


def cast_program(program: FuzzProgram) -> ingot.Casting:
    """Through the public verb, with a fresh model."""
    batches = [
        ingot.Inputs(*args, **kwargs) for args, kwargs in (call_arguments(program, i) for i in range(program.batches))
    ]
    net = FuzzNet(program).eval()
    return ingot.cast(
        net, batches[0], target=program.target, calibration=batches, recipe=program.recipe, weights=program.weights,
        on_mismatch="keep",
    )  # fmt: skip


def eager_outputs(
    program: FuzzProgram, net: FuzzNet | None = None, dtype: torch.dtype | None = None
) -> list[list[Tensor]]:
    """The batches in sequence, as state sees them."""
    net = (net or FuzzNet(program)).eval()
    made = []
    with torch.no_grad():
        for i in range(program.batches):
            args, kwargs = pytree.tree_map(lambda t: _as(t, dtype), call_arguments(program, i))
            made.append([t.clone() for t in pytree.tree_leaves(net(*args, **kwargs))])
    return made


def _as(t: Tensor, dtype: torch.dtype | None) -> Tensor:
    return t.to(dtype) if dtype is not None and t.dtype.is_floating_point else t.clone()


def _finite(t: Tensor) -> bool:
    return not t.dtype.is_floating_point or bool(torch.isfinite(t).all())


# ---- the verdict ----


def _judged(
    program: FuzzProgram, casting: ingot.Casting, expected: list[list[Tensor]], facts: dict[str, Any]
) -> Outcome:
    check: Any = casting.check
    if not check.outputs and expected[0]:
        said = str(check.culprit)  # that no kernel exists anywhere is a refusal; anything else is a broken artefact
        kind = "refused" if said.startswith("nothing can run") else "does not run"
        return Outcome(**facts, kind=kind, reason=normalized(said), text=said[:1500])
    try:
        made = run_by_itself(program, casting)
    except Exception as e:
        text = "".join(traceback.format_exception(e))[-3500:]
        return Outcome(**facts, kind="wrong", reason=f"does not run by itself: {reason_of(e)}", text=text)
    if (shape := _form(expected, made)) is not None:
        return Outcome(**facts, kind="wrong", reason=shape, text=shape)
    found = [sqnr_db([b[i] for b in expected], [b[i] for b in made]) for i in range(len(expected[0]))]
    facts["worst_db"] = min(found, default=EXACT_DB)
    if check.passed:
        return _passed(program, expected, made, found, facts)
    return _failed(program, check, expected, made, facts)


def _passed(
    program: FuzzProgram, expected: list[list[Tensor]], made: list[list[Tensor]], found: list[float],
    facts: dict[str, Any],
) -> Outcome:  # fmt: skip
    worst = min((db for i, db in enumerate(found) if not _may_be_chance(expected, made, i)), default=EXACT_DB)
    if worst < MIN_DB and is_rounding_noise(program, expected, made):
        return Outcome(**facts, kind="ill-conditioned", reason="rounding noise of float32", text=f"{worst:.1f} dB")
    if is_float(program) and worst < MIN_FLOAT_DB and _double_db(program, expected) > worst + 20:
        return Outcome(**facts, kind="wrong", reason="float artefact far from the model", text=f"{worst:.1f} dB")
    if worst < MIN_DB:
        return Outcome(**facts, kind="wrong", reason="passed the check, far from the model", text=f"{worst:.1f} dB")
    return Outcome(**facts, kind="ok")


def _may_be_chance(expected: list[list[Tensor]], made: list[list[Tensor]], output: int) -> bool:
    """Of integers: near a tie a few of few differ, by the binomial distribution of a share that MIN_DB allows."""
    pairs = [(want[output], got[output]) for want, got in zip(expected, made, strict=True)]
    if pairs[0][0].dtype.is_floating_point:
        return False
    wrong, of = sum(int((w != g).sum()) for w, g in pairs), sum(w.numel() for w, _ in pairs)
    return 1 - sum(_binomial(k, of, 10 ** (-MIN_DB / 10)) for k in range(wrong)) > CHANCE


def _binomial(k: int, of: int, share: float) -> float:
    """By logarithms: the coefficients of a thousand elements are larger than any float."""
    ways = math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
    return math.exp(ways + k * math.log(share) + (of - k) * math.log1p(-share))


def _failed(
    program: FuzzProgram, check: Any, expected: list[list[Tensor]], made: list[list[Tensor]], facts: dict[str, Any]
) -> Outcome:
    problems = [o.problem for o in check.outputs if o.problem]
    text = f"{'; '.join(problems)} · culprit: {check.culprit}"[:1500]
    facts["plain_db"] = plain = plain_quantization_db(program, expected)
    if any("disagree" in p or "worse than its" in p for p in problems):
        return Outcome(**facts, kind="unfaithful", reason=normalized(problems[0]), text=text)
    if is_rounding_noise(program, expected, made):
        return Outcome(**facts, kind="ill-conditioned", reason="rounding noise of float32", text=text)
    if is_float(program) or (plain >= WELL_CONDITIONED_DB and facts["worst_db"] < plain - 15):
        return Outcome(**facts, kind="poor", reason=normalized(problems[0]), text=text)
    return Outcome(**facts, kind="ill-conditioned", reason=normalized(problems[0]), text=text)


def is_float(program: FuzzProgram) -> bool:
    return program.recipe.get("quantize") is False


def _form(expected: list[list[Tensor]], made: list[list[Tensor]]) -> str | None:
    for want, got in zip(expected, made, strict=True):
        if len(want) != len(got):
            return f"{len(got)} outputs instead of {len(want)}"
        for i, (w, g) in enumerate(zip(want, got, strict=True)):
            if w.shape != g.shape or w.dtype != g.dtype:
                return f"output {i} is {g.dtype} {tuple(g.shape)} instead of {w.dtype} {tuple(w.shape)}"
    return None


def sqnr_db(want: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Of integers: -10 log10 of the fraction that differs."""
    w, g = (torch.cat([t.double().reshape(-1) for t in side]) for side in (want, got))
    if not want[0].dtype.is_floating_point:
        wrong = int((w != g).sum())
        return EXACT_DB if wrong == 0 else -10 * math.log10(wrong / w.numel())
    noise, signal = float((w - g).square().sum()), float(w.square().sum())
    if not math.isfinite(noise):
        return -EXACT_DB
    if noise <= signal * 1e-20:
        return EXACT_DB
    return 10 * math.log10(signal / noise) if signal > 0 else -EXACT_DB


def _double_db(program: FuzzProgram, expected: list[list[Tensor]]) -> float:
    """How well float32 itself computes the model."""
    try:
        net = FuzzNet(program).double()
        made = eager_outputs(program, net, torch.float64)
    except (RuntimeError, TypeError):
        return EXACT_DB
    return min(sqnr_db([b[i] for b in made], [b[i] for b in expected]) for i in range(len(expected[0])))


def is_rounding_noise(program: FuzzProgram, expected: list[list[Tensor]], made: list[list[Tensor]]) -> bool:
    """Each far output is off by no more than the model itself is in some run with rounding noise on every value."""
    generator = torch.Generator().manual_seed(program.seed)
    runs = [_noisy_outputs(program, generator) for _ in range(NOISY_RUNS)]
    for i in range(len(expected[0])):
        want, got = ([b[i] for b in side] for side in (expected, made))
        most = max(_power_between(want, [b[i] for b in run]) for run in runs)
        if sqnr_db(want, got) < MIN_DB and _power_between(want, got) > most:
            return False
    return True


def _noisy_outputs(program: FuzzProgram, generator: torch.Generator) -> list[list[Tensor]]:
    def noisy(name: str, t: Tensor) -> Tensor:
        return t * (1 + ROUNDING * torch.randn(t.shape, generator=generator)) if t.dtype is torch.float32 else t

    net = FuzzNet(program)
    net.watch = noisy  # type: ignore[assignment]
    return eager_outputs(program, net)


def _power_between(want: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    return sum(float((w.double() - g.double()).square().sum()) for w, g in zip(want, got, strict=True))


def plain_quantization_db(program: FuzzProgram, expected: list[list[Tensor]]) -> float:
    """The worst output when every value is rounded to 8 bits between its least and its greatest number.

    An input with given qparams is stored with those, here too: what they clip or round to zero is lost to any program.
    """
    seen: dict[str, tuple[float, float]] = {}
    given = _given_qparams(program)

    def observe(name: str, t: Tensor) -> Tensor:
        if name in program.inputs:
            return _rounded_as_given(t, given.get(name))
        if t.dtype.is_floating_point and t.numel():
            low, high = seen.get(name, (0.0, 0.0))
            seen[name] = min(low, float(t.min())), max(high, float(t.max()))
        return t

    def rounded(name: str, t: Tensor) -> Tensor:
        if name in program.inputs:
            return _rounded_as_given(t, given.get(name))
        low, high = seen.get(name, (0.0, 0.0))
        return t if high == low else ((t - low) / (high - low) * 255).round() / 255 * (high - low) + low

    for watch in (observe, rounded):
        net = FuzzNet(program)
        net.watch = watch  # type: ignore[assignment]
        made = eager_outputs(program, net)
    return min(
        (sqnr_db([b[i] for b in expected], [b[i] for b in made]) for i in range(len(expected[0]))), default=EXACT_DB
    )


def _given_qparams(program: FuzzProgram) -> dict[str, Spec]:
    """Of inputs: only what the recipe gives as numbers."""
    specs = zip(program.inputs, program.recipe.get("inputs", ()), strict=False)
    return {name: spec for name, asked in specs if (spec := spec_from(asked)) is not None and spec.scale is not None}


def _rounded_as_given(t: Tensor, spec: Spec | None) -> Tensor:
    if spec is None or spec.scale is None or not t.dtype.is_floating_point:
        return t
    steps = torch.round(t.double() / spec.scale) + spec.zero_point
    return ((steps.clamp(spec.qmin, spec.qmax) - spec.zero_point) * spec.scale).to(t.dtype)


# ---- the artefact by itself ----


def run_by_itself(program: FuzzProgram, casting: ingot.Casting) -> list[list[Tensor]]:
    """XNNPACK in this process, on ExecuTorch's public runtime: a crash ends the worker, whose seed is known. The
    delegates of other targets need Ingot's executors."""
    inputs, outputs = casting.io.inputs, casting.io.outputs
    given = [
        [_stored(x, io) for x, io in zip(input_tensors(program, i), inputs, strict=True)]
        for i in range(program.batches)
    ]
    if program.target == "xnnpack":
        made = _on_executorch(casting.pte, given)
    else:
        files = {d.digest: d.files for d in casting.delegates}
        run = casting.needed_evidence.target.runner.run
        made = run(casting.pte, [tuple(b) for b in given], files=files, timeout=60, fresh=False)
    return [[_read(t, io) for t, io in zip(batch, outputs, strict=True)] for batch in made]


def _on_executorch(pte: bytes, batches: list[list[Tensor]]) -> list[list[Tensor]]:
    import executorch.kernels.quantized  # noqa: F401  registers its kernels
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(pte)
    method = program.load_method("forward")
    return [[t.clone() for t in method.execute(batch) if isinstance(t, Tensor)] for batch in batches]


def _stored(x: Tensor, io: Any) -> Tensor:
    if io.scale is not None:
        steps = torch.round(x.double() / io.scale) + io.zero_point
        x = steps.clamp(io.qmin, io.qmax).to(getattr(torch, io.dtype.removeprefix("torch.")))
    return x.contiguous(memory_format=torch.channels_last if io.layout == "channels_last" else torch.contiguous_format)


def _read(t: Tensor, io: Any) -> Tensor:
    return t if io.scale is None else ((t.double() - io.zero_point) * io.scale).float()


# ---- reasons ----

_VARIES = re.compile(r"0x[0-9a-f]+|'[^']*'|\[[^\]]*\]|\([^)]*\)|torch\.Size\S*|[-+]?\d[\d.e+-]*|\b\w+_\d+\b|\bs\d+\b")


def normalized(text: str) -> str:
    """Without what differs from program to program: numbers, shapes, names, the runtime's last lines."""
    return " ".join(_VARIES.sub("#", text.split("; its last lines")[0]).split())[:160]


def reason_of(error: BaseException) -> str:
    if isinstance(error, ingot.IngotError):
        return f"{type(error).__name__}: {normalized(error.what)} / {normalized(error.why or '')}"[:220]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/ingot/" in f.filename]
    at = f"{frames[-1].filename.rpartition('/ingot/')[2]}:{frames[-1].name}" if frames else ""
    return f"{type(error).__name__} at {at}: {normalized(str(error))}"[:220]
