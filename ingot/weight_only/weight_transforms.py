"""What becomes of a weight before it is rounded, where the values around it are another's doing: computed when asked.

A program with all its weights changed would be as large again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ingot.weight_only.hessian import Read
from ingot.weight_only.scheme import Layer


@dataclass(frozen=True, eq=False)
class Change:
    """A linear W that reads inside @ (x / columns) instead of x, and gives rows * (outside @ y) instead of y."""

    inside: Tensor | None = None
    columns: Tensor | None = None
    outside: Tensor | None = None
    rows: Tensor | None = None

    def weight(self, weight: Tensor, some: slice = slice(None)) -> Tensor:
        """Some rows of it."""
        made = weight.detach()[some].float() if self.outside is None else self.outside[some] @ weight.detach().float()
        made = made if self.columns is None else made * self.columns
        made = made if self.inside is None else made @ self.inside.T
        return made if self.rows is None else made * self.rows[some, None]

    def bias(self, bias: Tensor) -> Tensor:
        made = bias.detach().float() if self.outside is None else self.outside @ bias.detach().float()
        return made if self.rows is None else made * self.rows

    def read(self, read: Read) -> Read:
        return read if self.columns is None and self.inside is None else read.changed(self.columns, self.inside)

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same numbers: a weight that is used twice is stored once."""
        vectors = (None if t is None else t.float().numpy().tobytes() for t in (self.columns, self.rows))
        return id(self.inside), id(self.outside), *vectors


NONE = Change()


def apart(layers: Sequence[Layer], changes: Mapping[str, Change]) -> tuple[Layer, ...]:
    """A weight that is used twice and changed in two ways is two: both are stored."""

    def same(layer: Layer) -> bool:
        return changes.get(layer.name, NONE).key == changes.get(layer.same_as, NONE).key

    return tuple(layer if not layer.same_as or same(layer) else replace(layer, same_as="") for layer in layers)
