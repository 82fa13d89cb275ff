"""A target with extra backends, which plan, lower and run the ops they own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.backends.base import Backend
from ingot.lower.opaque_ops import is_opaque, opaque_ops, restore_ops
from ingot.targets.base import Ability, Batch, Executor, Lowering, RewriteRule, Target
from ingot.targets.forwarding import ForwardingKernels, ForwardingLowering, ForwardingRunner


def with_backends(target: Target, backends: Sequence[Backend]) -> Target:
    """A ComposedTarget, or the target itself without extra backends."""
    return ComposedTarget.of(target, tuple(backends)) if backends else target


@dataclass(frozen=True)
class _Owners:
    """Which extra backend owns an op, and in which precisions it runs it."""

    backends: tuple[Backend, ...]
    precisions: tuple[str, ...]

    def ability(self, node: Node) -> Ability | None:
        if node.op != "call_function" or is_opaque(node):
            return None
        return next((a for b in self.backends if (a := b.ability(node, self.precisions)) is not None), None)

    def own(self, node: Node) -> bool:
        return self.ability(node) is not None


@dataclass(frozen=True)
class ComposedTarget(Target):
    """`main` runs every op that no extra backend owns."""

    main: Target | None = None

    @classmethod
    def of(cls, main: Target, backends: tuple[Backend, ...]) -> ComposedTarget:
        owners = _Owners(backends, tuple(main.numerics.formats))
        kernels, lowering = _ComposedKernels(main.kernels, owners), _ComposedLowering(main.lowering, owners)
        runner = _ComposedRunner(main.runner, backends)
        parts = (main.numerics, kernels, main.cost, lowering, runner, main.setup, main.weight_only)
        return cls(main.name, main.description, *parts, main=main)


@dataclass(frozen=True)
class _ComposedKernels(ForwardingKernels):
    owners: _Owners

    def ability(self, node: Node) -> Ability:
        return self.owners.ability(node) or self.main.ability(node)

    def fuses(self, producer: Node, consumer: Node) -> bool:
        return not (self.owners.own(producer) or self.owners.own(consumer)) and self.main.fuses(producer, consumer)

    def requantizes(self, node: Node) -> bool:
        # An owned op computes in float between its Q/DQ, so its input and its output have separate scales.
        return self.owners.own(node) or self.main.requantizes(node)


class _ComposedLowering(ForwardingLowering):
    def __init__(self, main: Lowering, owners: _Owners):
        super().__init__(main)
        self.owners, self.extra_backends = owners, owners.backends

    def rules(self) -> Sequence[RewriteRule]:
        own = (rule for b in self.extra_backends for rule in b.rules())
        return (*own, *(_SkipsOwnedOps(rule, self.owners) for rule in self.main.rules()))

    def owned_by_another(self, node: Node) -> bool:
        return self.owners.own(node)


@dataclass(frozen=True)
class _SkipsOwnedOps:
    """A rewrite rule of `main` that does not see ops of extra backends."""

    rule: RewriteRule
    owners: _Owners

    @property
    def name(self) -> str:
        return self.rule.name

    def apply(self, module: GraphModule) -> list[str]:
        if not any(self.owners.own(n) for n in module.graph.nodes):
            return self.rule.apply(module)
        with opaque_ops() as close:
            close(module, self.owners.own)
            places = self.rule.apply(module)
            restore_ops(module)
        return places


@dataclass(frozen=True)
class _ComposedRunner(ForwardingRunner):
    backends: tuple[Backend, ...]

    def run(
        self, pte: bytes, batches: Sequence[Batch], *, extra: Mapping[str, Executor] | None = None, **how: Any
    ) -> list[list[torch.Tensor]]:
        executors = {b.backend_id: b.run for b in self.backends}
        return self.main.run(pte, batches, extra={**executors, **(extra or {})}, **how)

    def executed_on(self) -> str:
        return f"{self.main.executed_on()}; {', '.join(b.name for b in self.backends)} on its own executor"

    def write_scenario(self, folder: Path, pte: bytes, batches: Any, shaders: Any = None) -> None:
        own = {b.backend_id: b.shader for b in self.backends if b.shader is not None}
        self.main.write_scenario(folder, pte, batches, {**own, **(shaders or {})})
