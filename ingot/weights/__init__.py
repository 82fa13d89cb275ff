"""Weight schemes: integers for weights by groups, activations rounded at run time, token by token."""

from __future__ import annotations

from ingot.weights.scheme import SCHEMES, Layer, Scheme

__all__ = ["SCHEMES", "Layer", "Scheme"]
