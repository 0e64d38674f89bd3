"""`Dataset`: a data set of Foreload under torch's own `DataLoader`.

A map-style data set as any other, which reads whole batches (`__getitems__`) through the agent: what it answers with is a plain list. With a
`Sampler` of the same data set, the agent knows what is going to be asked for; without one, samples are fetched when they are asked for, and
kept, for all worker processes together. Our own loader asks by a `Turn`, and gets the samples as they came, to collate them itself.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data

from foreload import _core
from foreload._data import dataset as _dataset
from foreload._node.job import Recipe, node_word, reader_recipe
from foreload._run.decode import Decoder, decoded, global_states, raw_of
from foreload._run.readings import Readings
from foreload._settings.cache import Cache, fixed
from foreload._settings.failures import Failures, OnError
from foreload.errors import (
    ChangedError,
    CorruptError,
    ForeloadError,
    InvalidError,
    NoMemoryError,
    NotFoundError,
    name_sample,
)
from foreload.torch import _worker
from foreload.torch._batch import FORMS, Decoded, Form, Found, Undecoded
from foreload.torch.sampler import Read, Sampler

#: What items are, in annotations: `Dataset[Item]`, as in torch.
Item = TypeVar("Item", covariant=True)
_LOG = logging.getLogger("foreload")


class Turn(list[int]):
    """The samples of one batch, by whose number a worker asks for it where the plan has it.

    Args:
        samples: The samples.
        epoch: The epoch.
        number: The batch's number in the epoch.
        lap: By which number plan and agent know the epoch.
        first: Where the batch is none of the plan's: the position of its first read in the epoch.
        reads: The reads' names, where they don't follow from that.
        readings: Which readings of the samples these are.
    """

    def __init__(
        self,
        samples: Sequence[int],
        epoch: int,
        number: int,
        lap: int,
        first: int | None = None,
        reads: list[tuple[int, int]] | None = None,
        readings: Readings = Readings(),  # noqa: B008 (it doesn't change)
    ) -> None:
        super().__init__(samples)
        self.epoch, self.number, self.lap, self.first, self.reads = epoch, number, lap, first, reads
        self.readings = readings

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Turn, (list(self), self.epoch, self.number, self.lap, self.first, self.reads, self.readings)


def names_of(samples: Sequence[int]) -> list[tuple[int, int]] | None:
    """The reads' names, epoch and position; None: the samples come from somewhere else than an order of the plan."""
    if isinstance(samples, Turn):
        if samples.reads is not None:
            return samples.reads
        first = samples.first
        return None if first is None else [(samples.lap, first + at) for at in range(len(samples))]
    names = [(sample.epoch, sample.position) for sample in samples if isinstance(sample, Read)]
    return names if names and len(names) == len(samples) else None


def epoch_of(samples: Sequence[int]) -> int | None:
    """The epoch in which samples are read; None: nobody says."""
    if isinstance(samples, Turn):
        return samples.epoch
    return samples[0].epoch if samples and isinstance(samples[0], Read) else None


def _draw() -> int:
    """A seed from torch's random numbers, which torch's own loader seeds anew for each epoch's workers."""
    return int(torch.randint(1 << 62, (), dtype=torch.int64))


def _states() -> object:
    """The states of everybody's generators, torch's too."""
    return global_states(), torch.get_rng_state().numpy().tobytes()


def _detached(value: Any, raw: memoryview) -> Any:
    """What a decoder made, with copies of tensors and arrays that lie in the sample's own memory: others read that, and writing to it ends the process."""
    if isinstance(value, torch.Tensor):
        return value.clone() if _lies_in(value, raw) else value
    if isinstance(value, np.ndarray):
        lies_there = len(raw) > 0 and np.may_share_memory(value, np.frombuffer(raw, np.uint8))
        return value.copy(order="K") if lies_there or not value.size else value
    if isinstance(value, dict):
        found = {name: _detached(each, raw) for name, each in value.items()}
        return value if _are_same(found.values(), value.values()) else _like(value, found)
    if isinstance(value, (list, tuple)):
        items = [_detached(each, raw) for each in value]
        if _are_same(items, value):
            return value
        if isinstance(value, list):
            twin = copy.copy(value)
            twin[:] = items
            return twin
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        changed = {name: _detached(getattr(value, name), raw) for name in names}
        if not _are_same(changed.values(), [getattr(value, name) for name in names]):
            value = copy.copy(value)
            for name, each in changed.items():
                # A frozen one is this copy's own until it is handed over.
                object.__setattr__(value, name, each)
    return value


def _are_same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _like(mapping: dict[Any, Any], found: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of a class of the user's with other values."""
    if type(mapping) is dict:
        return found
    twin = copy.copy(mapping)
    twin.update(found)
    return twin


def _lies_in(tensor: torch.Tensor, raw: memoryview) -> bool:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not len(raw):
        return False
    first = np.frombuffer(raw, np.uint8).ctypes.data
    return first <= tensor.data_ptr() < first + len(raw)


#: Attributes of torch's subsets and concatenations.
_OF_PARTS = ("indices", "dataset", "datasets", "cumulative_sizes")


class Dataset(data.Dataset[Item]):
    """Samples as (data, label) pairs; the label is -1 where there is none.

    Args:
        dataset: What `foreload.open` answered.
        decode: From bytes to what `transform` and the collate function expect: `decode(data, meta)`, or `decode(data)`.
        transform: Applied to what `decode` returns, or to the bytes.
        raw: Form of the data where nothing decodes it: `bytes`, `tensor` (uint8; a batch of equally long samples is one tensor), or
            `view` (shared memory, in this process only).
        cache: Budgets.
        seed: What randomness in `decode` depends on, besides epoch and sample. Where nobody says which epoch it is, because the samples
            are asked for without a `Sampler`, torch's random numbers take its place, as in any data set.
        on_error: `"raise"`, or `foreload.skip(...)`.
    """

    #: Whether items are pairs (data, label) made here.
    paired = True
    #: In a worker: the number of the batch that was asked for last.
    turn = 0
    #: Torch's subset or concatenation that a loader was given, whose attributes are found here.
    _part: Any = None

    def __init__(
        self,
        dataset: _dataset.Dataset,
        *,
        decode: Callable[..., Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        raw: Form = "bytes",
        cache: Cache | None = None,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> None:
        if not isinstance(dataset, _dataset.Dataset):
            raise InvalidError(
                f"Dataset: {dataset!r} was not made by foreload.open; foreload.torch.DataLoader takes any other data set, and foreload.torch.wrap reads its "
                "files through the agent"
            )
        if raw not in FORMS:
            raise InvalidError(f"raw={raw!r}: give one of {', '.join(FORMS)}")
        self.data = dataset
        self.raw = raw
        #: What it was told, for a loader that is told something else.
        self.given = {"decode": decode, "transform": transform, "raw": raw, "cache": cache, "on_error": on_error}
        self.cache = fixed(cache)
        self.failures = Failures(on_error)
        self.decoder = Decoder(dataset.source, decode, transform, seed, self.failures, _draw, _states, _detached)
        #: Answers with the sampler that was made of this object.
        self.sampler: Callable[[], Sampler | None] | None = None
        #: The job without a sampler, the same one in all worker processes.
        self._word = node_word(dataset.digest)
        self._fixed: tuple[Recipe, int] | None = None
        self._settled = False
        self._meet()

    def __getattr__(self, name: str) -> Any:
        """What torch's subset or concatenation has that a loader was given."""
        if name in _OF_PARTS and self._part is not None:
            return getattr(self._part, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute.

        Raises:
            InvalidError: It would have no effect, because loaders were made of what it was.
        """
        if self.paired and name in ("decode", "transform"):
            raise InvalidError(
                f"a Dataset's {name} can't be set: loaders go by what it was made with. Make another Dataset, or a {name} that looks up what it does"
            )
        if name in _OF_PARTS and self._part is not None:
            setattr(self._part, name, value)
        else:
            super().__setattr__(name, value)

    def _meet(self) -> None:
        self.data.meeting["cache"] = self.cache
        self.data.meeting["decodes"] = self.decoder.is_needed
        self.data.meeting["skips"] = self.failures.skips

    def apart(self) -> Self:
        """The same for one loader alone, whose order doesn't concern other readers of this data set."""
        return self._twin(self.data.apart(), self.decoder, _word=self._word)

    def chosen(self, samples: NDArray[np.int64]) -> Self:
        """Some of its samples as torch's `Subset` has them: in this order, and `decode` knows them by their numbers here.

        Args:
            samples: Their numbers.
        """
        part = self.data.select(samples)
        return self._twin(part, self.decoder.of_chosen(samples), _word=node_word(part.digest))

    def _twin(self, dataset: _dataset.Dataset, decoder: Decoder, **own: Any) -> Self:
        twin = object.__new__(type(self))
        failures = Failures(self.failures.rule)
        own |= {"data": dataset, "failures": failures, "decoder": decoder.counting(failures)}
        twin.__dict__.update({**self.__dict__, **own, "sampler": None, "_fixed": None})
        twin._meet()
        return twin

    def counts(self) -> dict[str, int]:
        """What `stats()` of a loader says about it."""
        return {"skipped": self.failures.skipped}

    @property
    def nbytes(self) -> int:
        """Bytes of all samples, before they are decoded."""
        return self.data.nbytes

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return self.data.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Each class' label."""
        return self.data.class_to_idx

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, sample: int | Turn) -> Any:
        """One sample; batches are much faster.

        Raises:
            IndexError: There is no such sample.
        """
        if isinstance(sample, Turn):
            return self._found(sample)
        return self.__getitems__([sample])[0]

    def __getitems__(self, samples: Sequence[int]) -> Any:
        """Samples, read at once: a list of items, as from any data set. For our own loader's workers, the samples as they came.

        Raises:
            IndexError: There is no such sample.
            InvalidError: Every sample was skipped, and who asks is not our loader, which leaves the batch out.
        """
        if isinstance(samples, Turn):
            return self._found(samples)
        samples = [sample if isinstance(sample, Read) else self.data._at(sample) for sample in samples]  # noqa: SLF001
        found = self._found(samples)
        if not len(found) and samples and self.failures.skips:
            raise InvalidError(
                "every sample of a batch was skipped; torch's own loader can't leave a batch out: give a larger batch_size, or use "
                "foreload.torch.DataLoader, which can"
            )
        return found.items()

    def _found(self, samples: Sequence[int]) -> Any:
        worker = data.get_worker_info()
        if worker is None:
            return self._read(samples)
        if not self._settled:
            self.settle(worker.id)
        if isinstance(samples, Turn):
            self.turn = samples.number
        try:
            return self._read(samples)
        except Exception as error:
            if isinstance(error, ForeloadError):
                name_sample(error)
            if not isinstance(samples, Turn):
                raise
            return _worker.failure()

    def settle(self, worker: int) -> None:
        """Makes itself at home in a worker process.

        Args:
            worker: The worker's number.
        """
        _worker.end_with_the_trainer()
        self.failures.count_as(worker)
        if self.decoder.is_needed:
            # Not `torch.manual_seed`: until a device is initialised, it keeps a stack trace of each call, for each kind of device.
            self.decoder.seed_globally(torch.default_generator.manual_seed)
        self._settled = True

    def _read(self, samples: Sequence[int]) -> Found:
        recipe, rank = self.place()
        attachment = recipe.attachment()
        delivery = self._fetch(samples, recipe, rank)
        if not self.decoder.is_needed:
            self.failures.left_out(len(delivery))
            return Undecoded(delivery, self.raw, attachment)
        readings = samples.readings if isinstance(samples, Turn) else Readings()
        pairs = decoded(raw_of(delivery, readings), epoch_of(samples), self.decoder)
        return Decoded(pairs, attachment, paired=self.paired)

    def _fetch(self, samples: Sequence[int], recipe: Recipe, rank: int) -> _core.Delivery:
        attachment = recipe.attachment()
        wanted = [int(sample) for sample in samples]
        names = names_of(samples)
        planned = isinstance(samples, Turn) and names is None
        while True:
            try:
                if planned:
                    return attachment.batch(rank, samples.lap, samples.number)  # type: ignore[attr-defined]
                if names is not None:
                    return attachment.reads(rank, names)
                return attachment.samples(rank, wanted)
            except (CorruptError, ChangedError, NotFoundError) as error:
                if error.sample not in wanted:
                    raise
                self.failures.failed(error)
                wanted = [sample for sample in wanted if sample != error.sample]
            except NoMemoryError as error:
                if not attachment.is_too_large(error) or error.sample not in wanted:
                    raise
                self.failures.failed(error)
                wanted = [sample for sample in wanted if sample != error.sample]
            except InvalidError:
                # A new agent that doesn't know where we are, or a batch that is fetched once more.
                if not planned and names is None:
                    raise
            planned, names = False, None

    def place(self) -> tuple[Recipe, int]:
        """The job to read from, and as which rank."""
        met = self.sampler or self.data.meeting.get("sampler")
        sampler = met and met()
        # One of the user's that no pass of ours has asked is read by somebody else, who took the loader apart: it isn't drawn from here.
        if sampler is not None and not getattr(sampler, "is_unread", False):
            run = sampler.run()
            return run.recipe, run.rank
        if self._fixed is None:
            worker = data.get_worker_info()
            # One of a loader's workers says it for all.
            _LOG.log(
                logging.WARNING if worker is None or worker.id == 0 else logging.DEBUG,
                "nobody says in which order it is read, so nothing is fetched ahead: foreload.torch.DataLoader knows the order of a data set of ours, and of Subset "
                "and ConcatDataset of those, but not of one that a class of yours reads from (give it the Subset, and the class' work as a transform or "
                "decode=); torch's own loader needs a foreload.torch.Sampler",
            )
            budget = {**self.cache.budget(), "skip_large": self.failures.skips}
            self._fixed = reader_recipe(self.data.source, budget, self._word), 0
        return self._fixed

    def __getstate__(self) -> dict[str, Any]:
        """For workers that are not forked: where to read is decided here."""
        return {**self.__dict__, "_fixed": self.place(), "sampler": None, "_part": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Elsewhere it meets its sampler again, through the data set that both were made of."""
        self.__dict__.update(state)
        self._meet()
