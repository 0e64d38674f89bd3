"""Loading into torch: a `DataLoader` of our own, and a `Dataset` and `Sampler` for torch's; `wrap` for other data sets."""

from foreload.torch import _meeting as _meeting
from foreload.torch._opened import local
from foreload.torch.dataset import Dataset
from foreload.torch.loader import DataLoader
from foreload.torch.sampler import Sampler
from foreload.torch.wrapping import wrap

__all__ = ["DataLoader", "Dataset", "Sampler", "local", "wrap"]
