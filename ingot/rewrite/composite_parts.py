"""op that no delegate has and that lowering takes apart -> its parts, with the rewrites that these need

cosine_similarity, losses …: ExecuTorch decomposes them when the plan is already made. Rewrites and the planner would
see one op, of which all parts run on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import Graph, GraphModule, Node

from ingot.core.fx import calls
from ingot.rewrite.decomposition import canonicalize_again, inline
from ingot.targets.base import RewriteRule


@dataclass(frozen=True)
class CompositeParts:
    """`parts`: the graph that lowering makes of an op outside the delegate; None: it stays whole. `rules`: for them."""

    parts: Callable[[Node], Graph | None]
    rules: tuple[RewriteRule, ...] = ()
    name: str = "composites-by-parts"

    def apply(self, module: GraphModule) -> list[str]:
        found = [(node, graph) for node in calls(module) if (graph := self.parts(node)) is not None]
        places = [inline(node, graph) for node, graph in found]
        if places:
            canonicalize_again(module)
        for rule in self.rules if places else ():
            rule.apply(module)
        return places
