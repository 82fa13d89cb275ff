"""Find out by experiment what an op does to numbers: run it on numbers that can be recognised, and look."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ingot.capture.op_semantics.affine import blends, hold
from ingot.capture.op_semantics.effect import Effect, Kind, computes, creates, operands
from ingot.capture.op_semantics.harness import Constant, Setup, Trial, TrialBuilder
from ingot.capture.op_semantics.overrides import row_of
from ingot.capture.op_semantics.provenance import Finding, look
from ingot.capture.op_semantics.sizes import BIG, shape_of, symbolic_shape
from ingot.capture.op_semantics.tagged_values import Unfit

REASONS = {
    Kind.MOVES: "every output element is an input element at a position that does not depend on the values",
    Kind.SELECTS: "every output element is an input element, chosen by looking at the values",
    Kind.BLENDS: "f(a·x + b) = a·f(x) + b held for every a > 0 and b tried",
    Kind.CREATES: "the output does not depend on the values of the operands",
    Kind.COMPUTES: "output elements are not input elements, and f(a·x + b) is not a·f(x) + b",
}
ZEROS = "an average of input elements and of padded zeros: linear, with weights that sum to one but for the zeros"
IDENTITY = "the output is the operand, element for element"
_cache: dict[Any, Effect] = {}


def effect_of(node: torch.fx.Node, constant: Constant = lambda n: None) -> Effect:
    """What the op of a call_function node does to the numbers of its operands. Runs it, once per structure."""
    key = _key(node, constant)
    if key not in _cache:
        _cache[key] = row_of(node.target) or _without_running(node) or _experiment(node, constant)
    return _cache[key]


def _without_running(node: torch.fx.Node) -> Effect | None:
    if not _operand_tensors(node):
        return creates("it has no tensor operand")
    if "val" in node.meta and not any(t.dtype.is_floating_point for t in _tensors(node)):
        return computes("it makes no float tensor, so nothing of it is quantized")
    return None


def _experiment(node: torch.fx.Node, constant: Constant) -> Effect:
    error = ""
    for setup in _setups(node):
        try:
            with (
                warnings.catch_warnings(),
                torch.random.fork_rng(devices=[]),
                _one_thread(),
                torch.no_grad(),
                _disable_current_modes(),
            ):
                warnings.simplefilter("ignore")
                return _under(node, setup, constant)
        except Exception as e:  # whatever a kernel may raise; the next setup may suit it
            error = error or f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"
    return computes(f"the experiment could not be run ({error})")


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tensors are tiny: on a busy machine several threads would only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _setups(node: torch.fx.Node) -> Iterator[Setup]:
    """Ways to run a node, the most telling first: wide floats, random integers; small if the operands are big."""
    if sum(math.prod(shape_of(t)) for t in _operand_tensors(node)) > BIG:
        yield Setup(torch.float64, "random", 0, shrunk=True)
        yield Setup(torch.float64, "small", 0, shrunk=True)
    for dtype in (torch.float64, torch.float32, None):
        for integers in ("random", "small", "zeros"):
            yield Setup(dtype, integers, 0, shrunk=False)
    yield Setup(None, "zeros", 0, shrunk=False, real_floats=True)


def _under(node: torch.fx.Node, setup: Setup, constant: Constant) -> Effect:
    """The verdict under two sets of integers and masks (an unlucky mask may hide one branch of a where)."""
    trial = TrialBuilder(node, setup, constant).build()
    finding = judge(trial)
    other = Setup(setup.dtype, setup.integers, 1, setup.shrunk, setup.real_floats)
    if _has_free_integers(node, constant, setup):
        finding = _both(finding, judge(TrialBuilder(node, other, constant).build()), _only_masks(node))
    if setup.shrunk and finding.kind is Kind.CREATES:
        raise Unfit("small shapes may have cut the operand away")
    return _effect(node, trial, finding)


def judge(trial: Trial) -> Finding:
    """Look the output up in the inputs; if that fails, see whether the op commutes with affine maps."""
    held = hold(trial)
    once, twice = trial.run(held), trial.run(held)
    if once.numel() == 0:
        raise Unfit("its output has no elements")
    if not torch.allclose(once, twice, rtol=1e-4, equal_nan=True):
        return Finding(Kind.COMPUTES, note="random: two runs on the same operands differ")
    if not trial.slots:
        return Finding(Kind.CREATES, output=once)
    seen = look(trial, trial.slots, held)
    if seen and seen.slots and len(seen.slots) < len(trial.slots) and seen.kind is Kind.SELECTS:
        # chosen by another operand (the grid of a nearest sampler)? Hold that one, as an index is held
        seen = look(trial, [trial.slots[i] for i in seen.slots], held) or seen
    return seen or blends(trial, held) or Finding(Kind.COMPUTES)


def _both(a: Finding, b: Finding, only_masks: bool) -> Finding:
    """What holds under either set of integers."""
    kinds = {a.kind, b.kind}
    if Kind.COMPUTES in kinds:
        return a if a.kind is Kind.COMPUTES else b
    if kinds == {Kind.CREATES}:
        same = a.output is not None and b.output is not None and torch.equal(a.output, b.output)
        return a if same else Finding(Kind.COMPUTES, note="its numbers are made from integers")
    if Kind.CREATES in kinds:
        return _with_branch(a, b) if only_masks else Finding(Kind.COMPUTES)
    kind = next(k for k in (Kind.BLENDS, Kind.SELECTS, Kind.MOVES) if k in kinds)
    slots, constants = {*a.slots, *b.slots}, {*a.constants, *b.constants}
    same_one = a.identity and b.identity and a.slots == b.slots
    return Finding(kind, tuple(sorted(slots)), tuple(sorted(constants)), same_one)


def _with_branch(a: Finding, b: Finding) -> Finding:
    """One mask let only the constant branch through: the other finding, with that branch's values."""
    made, other = (a, b) if a.kind is Kind.CREATES else (b, a)
    values = set() if made.output is None else set(made.output.unique().tolist())
    if len(values) > 1:
        return Finding(Kind.COMPUTES)
    return Finding(other.kind, other.slots, tuple(sorted({*other.constants, *values})))


def _effect(node: torch.fx.Node, trial: Trial, finding: Finding) -> Effect:
    carriers = tuple(dict.fromkeys(trial.slots[i].operand for i in finding.slots))
    identity = finding.identity and len(carriers) == 1 and _same_value(operands(node)[carriers[0]], node)
    reason = IDENTITY if identity else _reason(finding, len(trial.slots))
    return Effect(finding.kind, carriers, finding.constants, identity, reason)


def _reason(finding: Finding, slots: int) -> str:
    reason = finding.note or REASONS[finding.kind]
    if finding.constants:
        constants = ", ".join(f"{c:g}" for c in finding.constants)
        reason = ZEROS if finding.kind is Kind.BLENDS else f"{reason}, or one of the constants {constants}"
    alone = finding.kind is Kind.BLENDS and len(finding.slots) < slots
    return f"{reason}, in the carriers while the other operands were held" if alone else reason


def _same_value(operand: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Same shape for every value of the symbols, same dtype, and no writing on the operand."""
    a, b = operand.meta.get("val"), node.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or _mutates(node.target):
        return False
    return a.dtype == b.dtype and symbolic_shape(a) == symbolic_shape(b)


def _mutates(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [t for t in tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def _operand_tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [t for n in operands(node) for t in _tensors(n)]


def _has_free_integers(node: torch.fx.Node, constant: Constant, setup: Setup) -> bool:
    if setup.integers == "zeros":
        return False
    known = {n for n in operands(node) if not setup.shrunk and constant(n) is not None}
    return any(not t.dtype.is_floating_point for n in operands(node) if n not in known for t in _tensors(n))


def _only_masks(node: torch.fx.Node) -> bool:
    return all(t.dtype == torch.bool for t in _operand_tensors(node) if not t.dtype.is_floating_point)


def _key(node: torch.fx.Node, constant: Constant) -> Any:
    arguments = map_aggregate((node.args, node.kwargs), lambda a: _described(a, constant))
    outputs = [(symbolic_shape(t), t.dtype) for t in _tensors(node)]
    return (node.target, repr((arguments, outputs, type(node.meta.get("val")))))


def _described(argument: Any, constant: Constant) -> Any:
    if not isinstance(argument, torch.fx.Node):
        return argument
    shapes = [(symbolic_shape(t), shape_of(t), t.dtype) for t in _tensors(argument)]
    plain = argument.meta.get("val")
    return ("operand", shapes, None if shapes else str(plain), _digest(argument, constant))


def _digest(node: torch.fx.Node, constant: Constant) -> str | None:
    """Constant integers decide what an index op does; floats are drawn afresh, so they do not count."""
    if not any(not t.dtype.is_floating_point for t in _tensors(node)):
        return None
    known = constant(node)
    if known is None:
        return None
    raw = known.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(raw.tobytes(), digest_size=16).hexdigest()
