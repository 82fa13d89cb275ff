"""The shader of grid_sample: its source, and one compiled file for each combination of stored types."""
