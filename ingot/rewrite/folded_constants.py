"""f(constants) -> constant: what other rules leave of constants is computed once, and not at every run"""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.capture.canonicalize.constants import fold_constants


@dataclass(frozen=True)
class FoldedConstants:
    name: str = "fold-constants"

    def apply(self, module: GraphModule) -> list[str]:
        folded = fold_constants(module)
        return [f"{folded} values that only depend on constants"] if folded else []


RULE = FoldedConstants()
