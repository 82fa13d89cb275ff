"""A fleet locally, on a Ray cluster of two nodes, and with processes killed: the same rows, counted."""
