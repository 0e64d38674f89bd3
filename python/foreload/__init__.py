"""Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foreload._core import __version__
from foreload._data.dataset import Dataset, Item, open  # noqa: A004 (`foreload.open`)
from foreload._run.decode import Meta
from foreload._settings.cache import Cache
from foreload._settings.failures import skip
from foreload._settings.peers import Peers
from foreload._settings.tuning import Tuning
from foreload.errors import ForeloadError

if TYPE_CHECKING:
    from foreload._data.mixture import Mixture, Stream
    from foreload._predict.planning import plan
    from foreload._run.arrays import NumpyLoader

__all__ = [
    "Cache",
    "Dataset",
    "ForeloadError",
    "Item",
    "Meta",
    "Mixture",
    "NumpyLoader",
    "Peers",
    "Stream",
    "Tuning",
    "__version__",
    "open",
    "plan",
    "skip",
]


#: What not every script needs: imported when it is first used.
_MODULES = ("cost", "plot", "sim")
_ELSEWHERE = {
    "Mixture": "_data.mixture",
    "NumpyLoader": "_run.arrays",
    "Stream": "_data.mixture",
    "plan": "_predict.planning",
}


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
