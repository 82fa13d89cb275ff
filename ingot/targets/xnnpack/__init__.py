"""Arm and x86 CPUs through XNNPACK."""
