"""The planner: chooses precisions, scale groups and qparams from constraints, calibration statistics and cost.

Read `solve` first: it lists the steps in order. `state` is what they work on, `model` what comes out.
"""
