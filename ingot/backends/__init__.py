"""Backends lowered beside a target: they own some ops."""
