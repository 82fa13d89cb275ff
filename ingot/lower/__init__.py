"""From a Q/DQ graph to a .pte: edge program, delegates, host ops with reasons."""
