"""Run the artefact and compare it with the float model and with the quantized graph."""
