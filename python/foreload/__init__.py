"""Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order."""

from importlib import import_module
from types import ModuleType

from foreload._core import __version__
from foreload._decode import Meta
from foreload.arrays import NumpyLoader
from foreload.cache import Cache
from foreload.dataset import Dataset, Item, open  # noqa: A004 (`foreload.open`)
from foreload.errors import ForeloadError
from foreload.failures import skip
from foreload.mixture import Mixture, Stream
from foreload.planning import plan
from foreload.tuning import Tuning

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


def __getattr__(name: str) -> ModuleType:
    """`foreload.sim`, `foreload.cost` and `foreload.plot`, imported when they are first used."""
    if name in ("cost", "plot", "sim"):
        return import_module(f"foreload.{name}")
    raise AttributeError(f"module 'foreload' has no attribute {name!r}")
