"""Rewrites that keep an op inside the delegate: one rule a file, the docstring is the rewrite."""
