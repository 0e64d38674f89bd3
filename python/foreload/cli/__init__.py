"""The command `foreload`: one module per verb, which converts and calls and decides nothing.

`app` gathers the verbs; a verb imports what it needs when it runs, so that `foreload --help` needs neither the native half nor
torch. `options` holds the options that verbs share, `output` how results look, `failure` what becomes of an exception.
"""

from foreload.cli.app import main

__all__ = ["main"]
