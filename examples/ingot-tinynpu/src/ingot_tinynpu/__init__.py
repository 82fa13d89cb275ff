"""A target for Ingot: TinyNPU, a small int8 accelerator with a MAC unit and an ALU, simulated in numpy."""
