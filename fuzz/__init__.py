"""Fuzzing (`make fuzz`), soaking (`make soak`) and damaged files (`make damage`)."""
