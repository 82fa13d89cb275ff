"""A backend that fails on an op costs that op, not the cast: find it, plan it otherwise, go on."""
