"""Ingot beside other runtimes: same weights, data and threads, in alternating rounds (`make bench-peers`)."""
