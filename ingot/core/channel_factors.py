"""Factors by which a plan divides the channels of values: plain numbers, to read, edit and replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

Factors = Mapping[str, tuple[float, ...]]  # by the name of an op or a value: one for each channel


@dataclass(frozen=True)
class ChannelFactors:
    """By which the channels of values are divided."""

    constants: Factors = field(default_factory=dict)  # of an op's result, in constants
    inputs: Factors = field(default_factory=dict)  # of a value, by a product before the weights that read it
    results: Factors = field(default_factory=dict)  # of an op's result, undone by a product after it

    def __bool__(self) -> bool:
        return bool(self.constants or self.inputs or self.results)

    def __or__(self, other: ChannelFactors) -> ChannelFactors:
        """Both, of different ops and values."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return ChannelFactors(*({**a, **b} for a, b in pairs))

    def of(self, name: str) -> dict[str, tuple[float, ...]]:
        """By where they are applied."""
        return {f.name: found[name] for f in fields(self) if name in (found := getattr(self, f.name))}
