"""A model that fails, cut down to the smallest one that still fails in the same way, as a file that runs by itself."""
