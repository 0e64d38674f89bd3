"""`python -m foreload` is the command `foreload`."""

from foreload.cli import main

main()
