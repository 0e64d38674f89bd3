"""The command `foreload`: one module per verb, which converts and calls and decides nothing.

`app` gathers the verbs; a verb imports what it needs when it runs, so that `foreload --help` needs neither the native half nor
torch. `options` holds the options that verbs share, `output` how results look, `failure` what becomes of an exception.
"""

import importlib.util
import signal
import sys

__all__ = ["main"]

#: What the package itself doesn't bring.
_NEEDS = ("typer", "rich")


def main() -> None:
    """Runs the command; the process' entry point."""
    try:
        missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            sys.exit(f"foreload: the command needs {' and '.join(missing)}: pip install 'foreload[cli]'")
        from foreload.cli.app import main as run

        run()
    except KeyboardInterrupt:
        # It was still being loaded: what a verb has to say about it, it has said.
        sys.exit(128 + signal.SIGINT)
