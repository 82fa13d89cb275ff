"""What an op does to numbers, found by running it."""

from ingot.capture.op_semantics.effect import Effect, Kind, operands
from ingot.capture.op_semantics.probe import effect_of

__all__ = ["Effect", "Kind", "effect_of", "operands"]
