"""One canonical form of a program: positional arguments, folded constants, no identities, plain data movement."""
