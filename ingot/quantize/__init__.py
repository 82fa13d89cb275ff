"""From a plan to a Q/DQ graph: PT2E replay, its audit, QAT, integer I/O, memory format."""
