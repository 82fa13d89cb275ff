"""Classify an op by probing: run it on tagged values and trace where the output elements come from."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ingot.capture.op_semantics.affine import find_affine, fixed_inputs
from ingot.capture.op_semantics.effect import Effect, Kind, computes, creates, operands
from ingot.capture.op_semantics.harness import ConstantLookup, Probe, ProbeBuilder, ProbeConfig
from ingot.capture.op_semantics.overrides import override_of
from ingot.capture.op_semantics.provenance import ProbeResult, trace_provenance
from ingot.capture.op_semantics.sizes import BIG_NUMEL, shape_of, symbolic_shape
from ingot.capture.op_semantics.tagged_values import ProbeError
from ingot.core.shape_cache import ShapeCache
from ingot.core.tensor_bytes import raw_bytes

REASONS = {
    Kind.MOVES: "every output element is an input element at a position that does not depend on the values",
    Kind.SELECTS: "every output element is an input element, selected by value",
    Kind.BLENDS: "f(a·x + b) = a·f(x) + b for every tested a > 0 and b",
    Kind.CREATES: "the output does not depend on the values of the operands",
    Kind.COMPUTES: "output elements are not input elements, and f(a·x + b) differs from a·f(x) + b",
}
PADDED_AVERAGE = (
    "an average of input elements and padded zeros: linear, and the weights sum to one except where zeros enter"
)
IDENTITY = "the output equals the operand elementwise"
_effects = ShapeCache[Effect]()


def effect_of(node: torch.fx.Node, constant: ConstantLookup = lambda n: None) -> Effect:
    """What the op of a call_function node does to its operands. Probed once per op, arguments and shapes."""
    key = structure_key(node, constant)
    return _effects.get(key, lambda: override_of(node.target) or _without_running(node) or _probe_op(node, constant))


def _without_running(node: torch.fx.Node) -> Effect | None:
    if not _operand_tensors(node):
        return creates("the op has no tensor operand")
    if "val" in node.meta and not any(t.dtype.is_floating_point for t in _tensors(node)):
        return computes("the op returns no float tensor, so its result is not quantized")
    return None


def _probe_op(node: torch.fx.Node, constant: ConstantLookup) -> Effect:
    error = ""
    for config in _configs(node):
        try:
            with (
                warnings.catch_warnings(),
                torch.random.fork_rng(devices=[]),
                one_thread(),
                torch.no_grad(),
                _disable_current_modes(),
            ):
                warnings.simplefilter("ignore")
                return _probe_with(node, config, constant)
        except Exception as e:  # a kernel may raise anything; try the next configuration
            error = error or f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"
    return computes(f"the op could not be probed ({error})")


@contextmanager
def one_thread() -> Iterator[None]:
    """The tensors are tiny. On a busy machine several threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _configs(node: torch.fx.Node) -> Iterator[ProbeConfig]:
    """Configurations, best first: float64 and random integers; reduced sizes if the operands are big."""
    if sum(math.prod(shape_of(t)) for t in _operand_tensors(node)) > BIG_NUMEL:
        yield ProbeConfig(torch.float64, "random", 0, shrunk=True)
        yield ProbeConfig(torch.float64, "small", 0, shrunk=True)
    for dtype in (torch.float64, torch.float32, None):
        for integers in ("random", "small", "zeros"):
            yield ProbeConfig(dtype, integers, 0, shrunk=False)
    yield ProbeConfig(None, "zeros", 0, shrunk=False, real_floats=True)


def _probe_with(node: torch.fx.Node, config: ProbeConfig, constant: ConstantLookup) -> Effect:
    """Probe with two sets of integers and masks: a single mask may hide one branch of a where."""
    probe = ProbeBuilder(node, config, constant).build()
    result = _classify(probe)
    other = ProbeConfig(config.dtype, config.integers, 1, config.shrunk, config.real_floats)
    if _has_free_integers(node, constant, config):
        result = _combine(result, _classify(ProbeBuilder(node, other, constant).build()), _only_masks(node))
    if config.shrunk and result.kind is Kind.CREATES:
        raise ProbeError("with reduced shapes the operand may not reach the output")
    return _effect(node, probe, result)


def _classify(probe: Probe) -> ProbeResult:
    """Trace the output elements to the inputs. If that fails, test whether the op commutes with affine maps."""
    fixed = fixed_inputs(probe)
    once, twice = probe.run(fixed), probe.run(fixed)
    if once.numel() == 0:
        raise ProbeError("the output is empty")
    if not torch.allclose(once, twice, rtol=1e-4, equal_nan=True):
        return ProbeResult(Kind.COMPUTES, note="random: two runs on the same operands differ")
    if not probe.float_args:
        return ProbeResult(Kind.CREATES, output=once)
    result = trace_provenance(probe, probe.float_args, fixed)
    if result and result.kind is Kind.SELECTS and 0 < len(result.float_args) < len(probe.float_args):
        # Selected by another operand (the grid of a nearest sampler)? Keep that one fixed, like an index.
        result = trace_provenance(probe, [probe.float_args[i] for i in result.float_args], fixed) or result
    if result and result.kind is Kind.CREATES and not _same_for_plain_values(probe, fixed, once):
        return ProbeResult(Kind.COMPUTES, note="the output depends on which operands are zero, or on their signs")
    if result and result.identity and not _keeps_infinities(probe, fixed):
        return replace(result, kind=Kind.SELECTS, identity=False)
    return result or find_affine(probe, fixed) or ProbeResult(Kind.COMPUTES)


def _keeps_infinities(probe: Probe, fixed: list[torch.Tensor]) -> bool:
    """clamp(x, lowest float) and nan_to_num change nothing else: no finite number shows what they do."""
    infinite = (probe.run([torch.full_like(x, number) for x in fixed]) for number in (torch.inf, -torch.inf))
    return all(bool(torch.isinf(out).all()) for out in infinite)


def _same_for_plain_values(probe: Probe, fixed: list[torch.Tensor], output: torch.Tensor) -> bool:
    """A norm of order 0 counts what is not zero: constant for random values, which are never zero.

    The lowest float absorbs what is added to it, but infinity; where infinity makes NaN it says nothing.
    """
    plain = (probe.run([torch.full_like(x, number) for x in fixed]) for number in (0.0, 1.0, -1.0))
    infinite = (probe.run([torch.full_like(x, number) for x in fixed]) for number in (torch.inf, -torch.inf))
    told = (torch.where(out.isnan(), output, out) for out in infinite)
    return all(torch.allclose(p, output, equal_nan=True) for p in (*plain, *told))


def _combine(a: ProbeResult, b: ProbeResult, only_masks: bool) -> ProbeResult:
    """What holds for both sets of integers."""
    kinds = {a.kind, b.kind}
    if Kind.COMPUTES in kinds:
        return a if a.kind is Kind.COMPUTES else b
    if kinds == {Kind.CREATES}:
        same = a.output is not None and b.output is not None and torch.equal(a.output, b.output)
        return a if same else ProbeResult(Kind.COMPUTES, note="the output is computed from integers")
    if Kind.CREATES in kinds:
        return _with_constant_branch(a, b) if only_masks else ProbeResult(Kind.COMPUTES)
    kind = next(k for k in (Kind.BLENDS, Kind.SELECTS, Kind.MOVES) if k in kinds)
    float_args, constants = {*a.float_args, *b.float_args}, {*a.constants, *b.constants}
    identity = a.identity and b.identity and a.float_args == b.float_args
    return ProbeResult(kind, tuple(sorted(float_args)), tuple(sorted(constants)), identity)


def _with_constant_branch(a: ProbeResult, b: ProbeResult) -> ProbeResult:
    """One mask selected the constant branch only: the other result, with the value of that branch."""
    constant_branch, other = (a, b) if a.kind is Kind.CREATES else (b, a)
    values = set() if constant_branch.output is None else set(constant_branch.output.unique().tolist())
    if len(values) > 1:
        return ProbeResult(Kind.COMPUTES)
    return ProbeResult(other.kind, other.float_args, tuple(sorted({*other.constants, *values})))


def _effect(node: torch.fx.Node, probe: Probe, result: ProbeResult) -> Effect:
    carriers = tuple(dict.fromkeys(probe.float_args[i].operand for i in result.float_args))
    identity = result.identity and len(carriers) == 1 and _same_value(operands(node)[carriers[0]], node)
    reason = IDENTITY if identity else _reason(result, len(probe.float_args))
    return Effect(result.kind, carriers, result.constants, identity, reason)


def _reason(result: ProbeResult, count: int) -> str:
    reason = result.note or REASONS[result.kind]
    if result.constants:
        constants = ", ".join(f"{c:g}" for c in result.constants)
        reason = PADDED_AVERAGE if result.kind is Kind.BLENDS else f"{reason}, or one of the constants {constants}"
    partial = result.kind is Kind.BLENDS and len(result.float_args) < count
    return f"{reason}, for the carriers while the other operands are fixed" if partial else reason


def _same_value(operand: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Same dtype, same symbolic shape, and the op does not mutate the operand."""
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


def _has_free_integers(node: torch.fx.Node, constant: ConstantLookup, config: ProbeConfig) -> bool:
    if config.integers == "zeros":
        return False
    known = {n for n in operands(node) if not config.shrunk and constant(n) is not None}
    return any(not t.dtype.is_floating_point for n in operands(node) if n not in known for t in _tensors(n))


def _only_masks(node: torch.fx.Node) -> bool:
    return all(t.dtype == torch.bool for t in _operand_tensors(node) if not t.dtype.is_floating_point)


def structure_key(node: torch.fx.Node, constant: ConstantLookup) -> Any:
    """Equal for nodes that an experiment cannot tell apart: op, arguments, shapes, constant integers."""
    arguments = map_aggregate((node.args, node.kwargs), lambda a: _argument_key(a, constant))
    outputs = [(symbolic_shape(t), t.dtype) for t in _tensors(node)]
    return (node.target, repr((arguments, outputs, type(node.meta.get("val")))))


def _argument_key(argument: Any, constant: ConstantLookup) -> Any:
    if not isinstance(argument, torch.fx.Node):
        return argument
    shapes = [(symbolic_shape(t), shape_of(t), t.dtype) for t in _tensors(argument)]
    plain = argument.meta.get("val")
    return ("operand", shapes, None if shapes else str(plain), _constant_digest(argument, constant))


def _constant_digest(node: torch.fx.Node, constant: ConstantLookup) -> str | None:
    """Constant integers determine what an index op does. Floats are drawn at random and are not hashed."""
    if not any(not t.dtype.is_floating_point for t in _tensors(node)):
        return None
    known = constant(node)
    if known is None:
        return None
    return hashlib.blake2b(raw_bytes(known).numpy().tobytes(), digest_size=16).hexdigest()
