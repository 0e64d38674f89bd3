"""Mounts: what `foreload mount` makes of its options, and the program that serves them."""
