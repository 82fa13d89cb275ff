"""Mutation test of the verdict: damage the outputs of good artefacts, and count how much of it is caught.

    python -m bench.mutants                      # all nets: a table, mutation by mutation
    python -m bench.mutants --nets classifier    # those whose name has this in it

Each mutant changes one channel, or one output, of what a real artefact returned. It counts if it changes a channel by
more than twice the rounding noise of that channel (graph against float model, computed here by itself). Mutants that
change less are as good as the artefact: they are left out.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.mutant_nets import SUBJECTS, Subject
from ingot.verify.check import References, run_undecoded

Runs = list[list[Tensor]]
MIN_CHANGE = 2.0  # in units of the channel's rounding noise
FLOAT_CHANGE = 1e-4  # of a channel's rms: what changes less is within float arithmetic
MOST_CHANNELS = 16  # of each output

# One channel (the first dimension is the channel), in place: f(tensor, channel, another channel).
CHANNEL: dict[str, Callable[[Tensor, int, int], object]] = {
    "negate": lambda t, c, o: t[c].copy_(~t[c] if t.dtype == torch.bool else -t[c]),
    "zero": lambda t, c, o: t[c].zero_(),
    "double": lambda t, c, o: t[c].copy_(t[c] + t[c]),
    "scale by 1.1": lambda t, c, o: t[c].copy_((t[c] * 1.1).to(t.dtype)),
    "shift by its spread": lambda t, c, o: t[c].copy_((t[c] + _spread(t[c])).to(t.dtype)),
    "reverse": lambda t, c, o: t[c].copy_(t[c].flatten().flip(0).view(t[c].shape)),
    "roll": lambda t, c, o: t[c].copy_(t[c].flatten().roll(1).view(t[c].shape)),
    "copy of another": lambda t, c, o: t[c].copy_(t[o]),
    "swap with another": lambda t, c, o: _swap(t, c, o),
}
OUTPUT: dict[str, Callable[[Tensor], Tensor]] = {
    "negated output": lambda t: ~t if t.dtype == torch.bool else -t,
    "zeroed output": torch.zeros_like,
    "output times 1.1": lambda t: (t * 1.1).to(t.dtype),
    "channels in reverse": lambda t: t.flip(0),
    "channels rolled": lambda t: t.roll(1, 0),
}


def _spread(channel: Tensor) -> Tensor:
    return channel.double().std(unbiased=False).clamp(min=1e-3)


def _swap(t: Tensor, c: int, o: int) -> None:
    kept = t[c].clone()
    t[c] = t[o]
    t[o] = kept


@dataclass(frozen=True)
class Mutant:
    """Damaged outputs, and by how much of its rounding noise the most changed channel changed."""

    name: str
    outputs: Runs
    change: float


def mutants(subject: Subject, good: Runs, references: References) -> Iterator[Mutant]:
    """All that change a channel by more than twice its noise; outputs that are swapped, dropped or of another type."""
    for i, axis in enumerate(subject.axes):
        for name, outputs in _damaged(good, i, axis):
            change = _change(good, outputs, references, i, axis)
            if change > MIN_CHANGE:
                yield Mutant(name, outputs, change)
        other = torch.float64 if good[0][i].dtype.is_floating_point else torch.int32
        yield Mutant("another dtype", _edited(good, i, partial(Tensor.to, dtype=other)), math.inf)
    if len(subject.axes) > 1:
        yield Mutant("outputs in reverse", [o[::-1] for o in good], math.inf)
    yield Mutant("an output dropped", [o[:-1] for o in good], math.inf)
    yield Mutant("an output twice", [[*o, o[-1]] for o in good], math.inf)


def _damaged(good: Runs, i: int, axis: int) -> Iterator[tuple[str, Runs]]:
    size = good[0][i].shape[axis]
    for c in range(0, size, -(-size // MOST_CHANNELS)):
        for name, damage in CHANNEL.items():

            def edit(t: Tensor, c: int = c, damage: Callable[[Tensor, int, int], object] = damage) -> Tensor:
                made = t.clone()
                damage(made.movedim(axis, 0), c, (c + 1) % size)
                return made

            yield name, _edited(good, i, edit)
    for name, change in OUTPUT.items():

        def changed(t: Tensor, change: Callable[[Tensor], Tensor] = change) -> Tensor:
            return change(t.movedim(axis, 0)).movedim(0, axis)

        yield name, _edited(good, i, changed)


def _edited(good: Runs, i: int, edit: Callable[[Tensor], Tensor]) -> Runs:
    return [[edit(t) if k == i else t for k, t in enumerate(outputs)] for outputs in good]


def _change(good: Runs, made: Runs, references: References, i: int, axis: int) -> float:
    """Of the most changed channel: the rms of the change, in units of the rms of graph - float model."""
    before, after, graph, float_ = (
        torch.cat([o[i].double().movedim(axis, 0).flatten(1) for o in side], 1)
        for side in (good, made, references.quantized, references.reference)
    )
    if not references.reference[0][i].dtype.is_floating_point:
        before, after, graph, float_ = before != graph, after != graph, graph != graph, graph != float_
        before, after, graph, float_ = (x.double() for x in (before, after, graph, float_))
    change, noise = ((x - y).square().mean(1).sqrt() for x, y in ((after, before), (graph, float_)))
    floor = FLOAT_CHANGE * before.square().mean(1).sqrt()
    return float((change / torch.maximum(noise, floor).clamp(min=1e-30)).max())


@dataclass(frozen=True)
class Outcome:
    """How many mutants of each kind were made and caught, and those that were not."""

    made: Counter[str]
    caught: Counter[str]
    missed: tuple[str, ...]
    false_alarm: str | None  # why the good artefact was refused


def outcome(subject: Subject) -> Outcome:
    """Judge the good outputs of one net, and each of their mutants."""
    evidence = subject.casting.needed_evidence
    flat = [evidence.program.flatten(b) for b in subject.batches]
    good, references = run_undecoded(subject.casting.pte, evidence, flat), References(evidence, flat)
    alarm = next((o.problem for o in references.judge(good) if o.problem), None)
    made, caught, missed = Counter[str](), Counter[str](), list[str]()
    for mutant in mutants(subject, good, references):
        found = any(o.problem for o in references.judge(mutant.outputs))
        made[mutant.name] += 1
        caught[mutant.name] += found
        missed += [] if found else [f"{mutant.name}: {mutant.change:.1f} times its noise"]
    return Outcome(made, caught, tuple(missed), alarm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="", help="only those whose name has this in it")
    asked = parser.parse_args().nets
    made, caught = Counter[str](), Counter[str]()
    for name in [n for n in SUBJECTS if asked in n]:
        found = outcome(SUBJECTS[name]())
        made, caught = made + found.made, caught + found.caught
        print(f"{name}: {found.caught.total()} of {found.made.total()} caught; false alarm: {found.false_alarm}")
        print("".join(f"  missed: {m}\n" for m in found.missed), end="", flush=True)
    for mutation in made:
        print(f"{mutation:20} {made[mutation]:6} made {caught[mutation] / made[mutation]:7.1%} caught")


if __name__ == "__main__":
    main()
