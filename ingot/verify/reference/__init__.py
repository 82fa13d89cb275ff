"""The quantized graph in double precision, with the arithmetic of the target: rounding, multipliers, LUTs."""
