"""Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order."""

from foreload._core import __version__
from foreload._decode import Meta
from foreload.arrays import NumpyLoader
from foreload.cache import Cache
from foreload.dataset import Dataset, Item, open  # noqa: A004 (`foreload.open`)
from foreload.errors import ForeloadError
from foreload.failures import skip
from foreload.planning import plan
from foreload.tuning import Tuning

__all__ = [
    "Cache",
    "Dataset",
    "ForeloadError",
    "Item",
    "Meta",
    "NumpyLoader",
    "Tuning",
    "__version__",
    "open",
    "plan",
    "skip",
]
