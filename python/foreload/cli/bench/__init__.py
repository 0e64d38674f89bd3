"""`foreload bench`: how fast this data set is read on this machine, with our loader and with the stock one.

`loaders` makes them, `measure` drives one through its epochs, `verb` is the command.
"""

from foreload.cli.bench.verb import bench

__all__ = ["bench"]
