"""Where an error starts: float program, quantized graph and artefact, value by value."""
