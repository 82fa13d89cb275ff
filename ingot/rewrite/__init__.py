"""Rewrites that keep ops inside the delegate: one rule for each file; its docstring is the rewrite."""
