"""A target with other backends beside it: what they own is asked of them, lowered by them and run by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.fx import GraphModule, Node

from ingot.backends.base import Backend
from ingot.lower.opaque_ops import closing, is_closed, reopen
from ingot.targets.base import Ability, Target


def beside(target: Target, backends: Sequence[Backend]) -> Target:
    """The same target for everything that no other backend owns."""
    if not backends:
        return target
    owned = partial(_owned, tuple(backends), tuple(target.formats))
    return replace(
        target,
        beside=tuple(backends),
        owns=lambda node: owned(node) is not None,
        ability=lambda node: owned(node) or target.ability(node),
        fuses=lambda node, act: owned(node) is None and owned(act) is None and target.fuses(node, act),
        # Between its dequantizes and its quantize an owned op computes in float: each side has a scale of its own.
        rescales=lambda node: owned(node) is not None or target.rescales(node),
        rules=lambda: (
            *(rule for b in backends for rule in b.rules()),
            *(_Around(rule, tuple(backends), tuple(target.formats)) for rule in target.rules()),
        ),
        scenario=target.scenario and partial(_scenario, target, tuple(backends)),
        run=partial(target.run, beside={b.backend_id: b.run for b in backends}),
        executed_on=lambda: f"{target.executed_on()}; {', '.join(b.name for b in backends)} by its own executor",
    )


def _scenario(target: Target, backends: Sequence[Backend], *args: Any) -> Any:
    assert target.scenario is not None
    return target.scenario(*args, {b.backend_id: b.shader for b in backends if b.shader is not None})


def _owned(backends: Sequence[Backend], formats: Sequence[str], node: Node) -> Ability | None:
    if node.op != "call_function" or is_closed(node):
        return None
    return next((a for b in backends if (a := b.ability(node, formats)) is not None), None)


@dataclass(frozen=True)
class _Around:
    """A rewriting rule that does not see what others own."""

    rule: Any
    backends: tuple[Backend, ...]
    formats: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.rule.name)

    def apply(self, module: GraphModule) -> list[str]:
        owned = partial(_owned, self.backends, self.formats)
        if not any(owned(n) for n in module.graph.nodes):
            return list(self.rule.apply(module))
        with closing() as close:
            close(module, lambda n: owned(n) is not None)
            places = self.rule.apply(module)
            reopen(module)
        return list(places)
