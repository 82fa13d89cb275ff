"""Find the op where an error starts: compare float program, quantized graph and artefact value by value."""
