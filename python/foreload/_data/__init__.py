"""Data sets: how one is opened, named, selected from and mixed with others."""
