"""A target without some ops: those on which its backend fails run in another precision, or on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule, Node

from ingot.backends.base import Backend
from ingot.errors import InputError, nearest
from ingot.lower.hidden_ops import hiding
from ingot.targets.base import Ability, Lowering, Target
from ingot.targets.forwarding import ForwardingKernels, ForwardingLowering


@dataclass(frozen=True)
class Bar:
    """An op that the backend must not run, and why."""

    name: str  # of the node, in the program as it is rewritten for the target
    reason: str
    leaves: frozenset[str] = frozenset()  # precisions in which the delegate may still run it; empty: the host runs it


def with_bars(target: Target, bars: Iterable[Bar]) -> Target:
    """A BarredTarget, or the target itself where nothing is barred."""
    return BarredTarget.of(target, tuple(bars)) if bars else target


def host_bars(host_ops: Iterable[tuple[str, str]], module: GraphModule) -> tuple[Bar, ...]:
    """Those of a recipe: pairs of a name and a reason. A name that the program does not have is an InputError."""
    known = {n.name for n in module.graph.nodes if n.op == "call_function"}
    for name, _ in host_ops:
        if name not in known:
            raise InputError(f"host_ops names '{name}', which this program does not have", hint=nearest(name, known))
    return tuple(Bar(name, reason) for name, reason in host_ops)


@dataclass(frozen=True)
class BarredTarget(Target):
    """`main` without the barred ops."""

    main: Target | None = None

    @classmethod
    def of(cls, main: Target, bars: tuple[Bar, ...]) -> BarredTarget:
        on_host = {b.name: b.reason for b in bars if not b.leaves}
        lowering = _BarredLowering(main.lowering, on_host) if on_host else main.lowering
        kernels = _BarredKernels(main.kernels, bars)
        parts = (main.numerics, kernels, main.cost, lowering, main.runner, main.setup, main.weight_only)
        return cls(main.name, main.description, *parts, main=main)


@dataclass(frozen=True)
class _BarredKernels(ForwardingKernels):
    bars: tuple[Bar, ...]

    def _bar(self, node: Node) -> Bar | None:
        return next((b for b in self.bars if b.name == node.name), None)

    def _on_host(self, node: Node) -> bool:
        bar = self._bar(node)
        return bar is not None and not bar.leaves

    def ability(self, node: Node) -> Ability:
        bar, able = self._bar(node), self.main.ability(node)
        return able if bar is None else Ability(able.runs & bar.leaves, bar.reason)

    def fuses(self, producer: Node, consumer: Node) -> bool:
        return not (self._on_host(producer) or self._on_host(consumer)) and self.main.fuses(producer, consumer)

    def requantizes(self, node: Node) -> bool:
        return self._on_host(node) or self.main.requantizes(node)


class _BarredLowering(ForwardingLowering):
    def __init__(self, main: Lowering, on_host: Mapping[str, str]):
        super().__init__(main)
        self.barred = on_host
        self.extra_backends = tuple(self._hidden_from(b) for b in main.extra_backends)

    def _hidden_from(self, backend: Backend) -> Backend:
        make: Callable[[], Any] = backend.partitioner
        return replace(backend, partitioner=lambda: hiding(make(), self.barred))

    def partitioners(self) -> list[Any]:
        return [hiding(p, self.barred) for p in self.main.partitioners()]

    def owned_by_another(self, node: Node) -> bool:
        return node.name not in self.barred and self.main.owned_by_another(node)
