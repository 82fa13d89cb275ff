"""A casting in the formats of other tools: ETRecord, bundled program, op list, C header, Model Explorer."""
