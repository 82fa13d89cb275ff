"""What an op does to the values of its operands, found by probing: running it on tagged values."""

from ingot.capture.op_semantics.effect import Effect, Kind, operands
from ingot.capture.op_semantics.probe import effect_of

__all__ = ["Effect", "Kind", "effect_of", "operands"]
