"""Measures the machine and its source, for `_predict`."""
