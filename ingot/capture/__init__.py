"""From a module to a Program: exported, functional, canonical."""
