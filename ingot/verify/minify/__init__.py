"""Reduce a model whose cast fails to the smallest model that fails in the same way, as a self-contained Python file.

Prior art: delta debugging (Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002), whose ddmin
removes ops here; and torch's fx minifier (`torch._functorch.fx_minifier`), for graphs that fail to compile.
"""
