"""The artefact executed and compared with the float model and with its quantized graph."""
