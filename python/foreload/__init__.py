"""Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foreload._core import __version__
from foreload._decode import Meta
from foreload.cache import Cache
from foreload.dataset import Dataset, Item, open  # noqa: A004 (`foreload.open`)
from foreload.errors import ForeloadError
from foreload.failures import skip
from foreload.tuning import Tuning

if TYPE_CHECKING:
    from foreload.arrays import NumpyLoader
    from foreload.mixture import Mixture, Stream
    from foreload.planning import plan

__all__ = [
    "Cache",
    "Dataset",
    "ForeloadError",
    "Item",
    "Meta",
    "Mixture",
    "NumpyLoader",
    "Stream",
    "Tuning",
    "__version__",
    "open",
    "plan",
    "skip",
]


#: What not every script needs: imported when it is first used.
_MODULES = ("cost", "plot", "sim")
_ELSEWHERE = {"Mixture": "mixture", "NumpyLoader": "arrays", "Stream": "mixture", "plan": "planning"}


def __getattr__(name: str) -> Any:
    """What is imported when it is first used."""
    if name in _MODULES:
        return import_module(f"foreload.{name}")
    if name in _ELSEWHERE:
        found = globals()[name] = getattr(import_module(f"foreload.{_ELSEWHERE[name]}"), name)
        return found
    raise AttributeError(f"module 'foreload' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All names, also those not yet imported."""
    return sorted({*globals(), *_MODULES, *_ELSEWHERE})
