"""Extra backends beside a target: each owns some ops."""
