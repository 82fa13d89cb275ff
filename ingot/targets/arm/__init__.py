"""Arm: VGF for GPUs; Ethos-U55, U65 and U85."""
