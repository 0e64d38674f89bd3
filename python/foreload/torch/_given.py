"""Orders that the user's own sampler decides.

Torch's samplers whose order the plan can compute are recognised, so that reading ahead crosses the border between epochs. Of any other,
an epoch is listed when its pass begins and supplied to the plan. Its next epoch is listed early only on a copy that draws from a
generator of its own or depends on `set_epoch`, so that the user's random numbers are never consumed before their time; if the sampler then
yields something else, that is what is read.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import operator
import random
import weakref
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from foreload import _core
from foreload._data import dataset as _dataset
from foreload._node.ranks import Ranks, Word
from foreload._run.position import numbers_in
from foreload._run.readings import Readings
from foreload._run.run import Run, check_belongs
from foreload._run.stream import Stream
from foreload._settings.cache import Cache
from foreload._settings.order import Order
from foreload._settings.state import check_state
from foreload.errors import InvalidError, StateError
from foreload.torch._feed import has_state
from foreload.torch._randomness import Draw, generators_within, put_back, standing

_LOG = logging.getLogger("foreload")


class Lists:
    """The passes of a sampler, as lists of batches.

    Which epoch a pass is of is the sampler's affair, as under torch's own loader: nobody here calls `set_epoch`. What the pass after it will
    yield is asked of a copy, and is a guess: a sampler may depend on more than its copy has.

    Args:
        sampler: A sampler or batch sampler.
        batch_size: Samples in a batch; None: the sampler yields batches.
        drop_last: Whether to leave out a last batch that isn't full.
        most: Samples of a pass that are listed at most.
        samples: Samples of the data set.
        is_ours: Whether the sampler is none of the user's, so that the loader sets its epochs.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        batch_size: int | None,
        drop_last: bool,
        most: int,
        samples: int,
        *,
        is_ours: bool = False,
    ) -> None:
        self._samples = samples
        self.sampler, self.batch_size, self.drop_last, self.most = sampler, batch_size, drop_last, most
        self._is_ours = is_ours
        self._is_foreseeable = True
        #: The epoch that the sampler was set to when it was listed, how much further than the time before, and what was foreseen of the next pass.
        self._told: int | None = None
        self._step = 1
        self._foreseen: tuple[int | None, list[list[int]]] | None = None
        #: This process' rank, and how many there are.
        self.place = (0, 1)
        #: How the generators stood when the latest pass was drawn.
        self._stood: dict[str, Any] | None = None
        self._drawn_epoch: int | None = None
        #: What samplers said of themselves then.
        self._told_before: dict[str, Any] = {}
        #: Whether it has more than was listed of it, which it draws later.
        self._draws_on = False
        #: How they stood when the pass was drawn that is resumed.
        self._restored: dict[str, Any] | None = None

    def readings(self, position: int) -> Readings:
        """Which readings the samples of a batch are that begins at this position of the rank's list."""
        rank, world = self.place
        return Readings(first=position * world + rank, step=world)

    def state(self, epoch: int | None) -> dict[str, Any]:
        """What the order depends on besides the sampler's arguments: its generators.

        Args:
            epoch: As they stood when its pass was drawn, if that is the latest one; None: as they stand between passes.
        """
        now = self._standing()
        if self._stood is None or epoch != self._drawn_epoch:
            return {"of": list(self.place), "random": now, **self._said()}
        # Whoever shares a generator with the sampler may have drawn from it since.
        since = {} if self._draws_on else {"since": now}
        return {"of": list(self.place), "random": self._stood | since, **self._told_before}

    def _said(self) -> dict[str, Any]:
        """What samplers say of themselves that have a state."""
        said = {name: copy.deepcopy(part.state_dict()) for name, part in self._stated()}
        return {"samplers": said} if said else {}

    def _stated(self) -> list[tuple[str, Any]]:
        named = zip(("order", "sampler"), _parts(self.sampler), strict=False)
        return [(name, part) for name, part in named if has_state(part)]

    def _standing(self) -> dict[str, Any]:
        return {name: standing(generator) for name, generator in self._generators()}

    def _generators(self) -> list[tuple[str, Any]]:
        """What the sampler has to draw from, and samplers within it have, by name."""
        return list(generators_within(dict(zip(("order", "sampler"), _parts(self.sampler), strict=False))).items())

    def restore(self, state: dict[str, Any], *, is_within: bool) -> bool:
        """The next pass draws as the one that a state is of, or as the one after it would have drawn.

        Args:
            state: The state.
            is_within: Whether it goes on within a pass. Between passes the generators stand again as they stood, at once: whoever draws from
                them before the sampler does, as a loader that shares one, drew from them then, too.

        Returns:
            Whether the state says how that was.

        Raises:
            StateError: It is damaged, or of a rank whose generator was seeded otherwise.
        """
        random = state.get("random")
        if random is None:
            return False
        if not isinstance(random, dict):
            raise StateError(f"the state is damaged: its generators' states are {random!r:.60}")
        self._restored = {"random": random, "of": place_in_state(state), "samplers": state.get("samplers", {})}
        if is_within and self._restored["of"] == self.place:
            # Whoever draws from them before the pass goes on draws as he did when the state was saved.
            self._put_back(random.get("since", {}))
        elif not is_within:
            self._set(self._restored)
            self._restored = None
        return True

    def _set(self, restored: dict[str, Any]) -> Draw | None:
        """Puts the sampler's generators where they stood; what everybody's were, where it drew from them."""
        random, is_own = restored["random"], restored["of"] == self.place
        for name, part in self._stated():
            if name in restored["samplers"]:
                part.load_state_dict(copy.deepcopy(restored["samplers"][name]))
        for name, generator in self._generators():
            stood = random.get(name)
            if stood is None:
                continue
            seed = stood.get("seed") if isinstance(stood, dict) else None
            if not is_own and isinstance(generator, torch.Generator) and seed not in (None, generator.initial_seed()):
                rank, world = restored["of"]
                raise StateError(
                    f"the state was saved on rank {rank} of {world}, where the sampler's generator was seeded with {seed} and not with "
                    f"{generator.initial_seed()}, as here: save a state on each rank, and load each rank's own"
                )
            put_back(generator, stood)
        return Draw.of(random["all"]) if is_own and "all" in random else None

    def _put_back(self, stood: dict[str, Any]) -> None:
        for name, generator in self._generators():
            if name in stood:
                put_back(generator, stood[name])

    def told(self, epoch: int) -> int | None:
        """The epoch that the sampler yields next, when the loader's is this one; None: it doesn't say."""
        return epoch if self._is_ours else epoch_of(self.sampler)

    def draw(self, epoch: int) -> Drawn:
        """The pass that begins now.

        Args:
            epoch: What the loader calls it.
        """
        if self._is_ours:
            set_epoch(self.sampler, epoch)
        told = self.told(epoch)
        if told is not None and self._told is not None:
            self._step = told - self._told
        self._told = told
        restored, self._restored = self._restored, None
        since = {} if restored is None else restored["random"].get("since", {})
        if since and restored is not None and restored["of"] == self.place:
            # They were put there when the state was loaded, and others may have drawn from them since.
            since = self._standing()
        everybodys = self._set(restored) if restored is not None else None
        stood, self._told_before = self._standing(), self._said()
        with everybodys.again() if everybodys is not None else contextlib.nullcontext():
            before = Draw.now()
            drawn = self._drawn(iter(self.sampler))
            after = Draw.now()
        self._draws_on = drawn.rest is not None
        if not self._draws_on:
            self._put_back(since)
        others = before.others if after.others_moved(before) else None
        if drawn.rest is None and (others is not None or after.torch_moved(before)):
            stood["all"] = Draw(before.torch_state, others).as_dict()
        self._stood, self._drawn_epoch = stood, epoch
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen[0] == told and foreseen[1] != drawn.batches:
            _LOG.warning(
                "the sampler yields another order than a copy of it did (%s): from now on it isn't listed before its pass begins, and nothing is "
                "read ahead from one pass to the next",
                type(self.sampler).__name__,
            )
            self._is_foreseeable = False
        return drawn

    def peek(self) -> list[list[int]] | None:
        """The batches of the pass after the one that was drawn last, as far as they can be had without touching the sampler."""
        if not self._is_foreseeable:
            return None
        twin = _twin(self.sampler)
        if twin is None:
            return None
        told = None if self._told is None else self._told + self._step
        if told is not None:
            set_epoch(twin, told)
        with _Unnoticed() as noticed:
            drawn = self._drawn(iter(twin))
        if noticed.any or drawn.rest is not None:
            # From everybody's random numbers: what it draws next is not known yet. Or more than is listed.
            self._is_foreseeable = False
            return None
        self._foreseen = (told, drawn.batches)
        return drawn.batches

    def _drawn(self, items: Iterator[Any]) -> Drawn:
        batches, left, drawing = [], self.most, self._cut(items)
        for batch in drawing:
            batches.append(batch)
            # An empty batch counts, too: of those there may be no end either.
            left -= max(1, len(batch))
            if left < 0:
                return Drawn(batches, drawing)
        return Drawn(batches)

    def _numbers(self, items: Iterable[Any]) -> list[int]:
        """Numbers of samples; negative ones count from the end, as in a list."""
        found, count = _numbers(items), self._samples
        return [number + count if -count <= number < 0 else number for number in found]

    def _cut(self, items: Iterator[Any]) -> Iterator[list[int]]:
        """The batches, each when it is asked for."""
        if self.batch_size is None:
            for batch in items:
                yield self._numbers(_batch(batch))
            return
        while batch := self._numbers(islice(items, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch


class Drawn:
    """What a sampler yields in a pass.

    Attributes:
        batches: The first batches.
        rest: Those after them; None: there are none.
    """

    def __init__(self, batches: list[list[int]], rest: Iterator[list[int]] | None = None) -> None:
        self.batches, self.rest = batches, rest

    def __iter__(self) -> Iterator[list[int]]:
        return chain(self.batches, self.rest or ())


class Resumed:
    """Where a state was saved of batches that only the sampler knows.

    Args:
        epoch: The epoch.
        batches: Batches of it that the loop has had.
        position: Samples in them.
    """

    #: The rank and world of the process that saved it, and the digest of what it had read.
    place: tuple[int, int] | None = None
    digest: int | None = None

    def __init__(self, epoch: int, batches: int, position: int) -> None:
        self.epoch, self.batches, self.position = epoch, batches, position

    def check_list(self, place: tuple[int, int], digest: int) -> None:
        """Refuses to go on in a list whose beginning is another one than was read.

        Args:
            place: This process' rank, and how many there are.
            digest: Of the sampler's first `batches` batches.

        Raises:
            StateError: It is.
        """
        if self.digest is None or self.place is None or self.digest == digest:
            return
        if self.place == place:
            raise StateError(
                f"the sampler's first {self.batches} batches of epoch {self.epoch} are others than those that were read before the state was saved: it draws "
                "from something that the state doesn't know. Give it a torch.Generator as its `generator`, a set_epoch on which its order depends, or "
                "bring it where it stood when that pass began"
            )
        if self.place[1] != place[1]:
            # Other ranks read other lists, of which this state says nothing: samples would come twice, or never.
            raise StateError(
                f"the sampler deals each epoch among {place[1]} ranks, and the state was saved within an epoch that was dealt among {self.place[1]}: go on "
                f"with {self.place[1]} ranks, or save states between epochs. A sampler that is known to deal all of the data set, such as a "
                "DistributedSampler given as sampler=, goes on with any number of ranks"
            )

    def check(self, epoch: int, samples: int) -> None:
        """Refuses to go on in an epoch that isn't cut as it was when the state was saved: samples would come twice, or never.

        Raises:
            StateError: It isn't.
        """
        if epoch == self.epoch and samples != self.position:
            raise StateError(
                f"the state was saved after {self.batches} batches with {self.position} samples, and the sampler's first {self.batches} of epoch "
                f"{epoch} have {samples}: give the batch sampler that the state was saved with"
            )


class _Unnoticed:
    """Gives the global generators of `random`, NumPy and torch back as they were.

    Attributes:
        any: Whether something was drawn from them meanwhile.
    """

    any = False

    def __enter__(self) -> Self:
        self._states = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        before, after = self._states, self._now()
        self.any = before[0] != after[0] or before[1] != after[1] or not torch.equal(before[2], after[2])
        if self.any:
            random.setstate(before[0])
            np.random.set_state(before[3])
            torch.set_rng_state(before[2])

    @staticmethod
    def _now() -> tuple[Any, Any, torch.Tensor, Any]:
        numpy: Any = np.random.get_state()
        return random.getstate(), (numpy[1].tobytes(), *numpy[2:]), torch.get_rng_state(), numpy


def _batch(found: Any) -> Iterable[Any]:
    if not isinstance(found, Iterable):
        raise InvalidError(
            f"batch_sampler yields {found!r}, which is no batch: give lists of samples' numbers, or sampler="
        )
    return found


def _numbers(items: Iterable[Any]) -> list[int]:
    # What the sampler's own code raises stays what it is.
    found = list(items)
    try:
        return list(map(operator.index, found))
    except TypeError as error:
        lists = any(isinstance(item, (list, tuple)) for item in found)
        remedy = ". One that yields lists is a batch_sampler=" if lists else ""
        raise InvalidError(f"the sampler yields something that is no sample's number: {error}{remedy}") from error


def check_samples(samples: Iterable[int], count: int) -> None:
    """Refuses what is no sample of the data set's.

    Raises:
        InvalidError: One isn't.
    """
    wrong = next((number for number in samples if not 0 <= number < count), None)
    if wrong is not None:
        raise InvalidError(f"the sampler yields {wrong}: samples are numbered from 0 to {count - 1}")


class _Order(Order):
    """An order that is supplied: a state of it is of the sampler, however long its epochs are."""

    @cached_property
    def sequence(self) -> str:
        """Names the data set alone."""
        return Order(self.dataset, self.samples, _lists_of(1), self.seed, 1, self.tail).sequence


def order_of(dataset: _dataset.Dataset, length: int, global_batch: int) -> Order:
    """The plan's order for lists of a length."""
    return _Order(dataset.digest, len(dataset), _lists_of(length), 0, global_batch, {"pad": {"multiple": 1}})


def _lists_of(length: int) -> dict[str, Any]:
    return {"supplied": {"length": length}}


def unread(dataset: _dataset.Dataset, size: int | None, epoch: int) -> dict[str, Any]:
    """The state of a loader at the beginning of an epoch, before its sampler was asked for anything.

    Args:
        dataset: The data set.
        size: Samples of a batch, if the sampler doesn't yield batches.
        epoch: The epoch.
    """
    order = order_of(dataset, 1, size or 1)
    state = {"version": 1, "order": "", "sequence": order.sequence, "epoch": epoch, "position": 0, "batches": 0}
    told = {"kind": order.name, "seed": order.seed, "samples": order.samples, "dataset": order.dataset}
    return {**state, "global_batch": order.global_batch, **told}


def resume(state: Any, dataset: _dataset.Dataset, size: int | None, here: int) -> tuple[Resumed, list[int]]:
    """Where a state goes on, which nobody needs to ask the sampler for.

    Args:
        state: The state.
        dataset: The data set.
        size: Samples of a batch; None: the sampler decides.
        here: How many ranks there are.

    Returns:
        Epoch, batches and samples that the loop has had, and the batches beyond them that it has had, too.

    Raises:
        StateError: It is damaged, or belongs to another run.
    """
    check_state(state)
    check_belongs(state, order_of(dataset, 1, 1))
    check_state(state, "batches")
    epoch, batches, position = state["epoch"], state["batches"], state["position"]
    if "positions" in state and position >= state["positions"]:
        return Resumed(epoch + 1, 0, 0), []
    if size is not None and position != batches * size:
        if state.get("beyond"):
            raise StateError(
                f"the state was saved with in_order=False, when batches {state['beyond']} had come before batch {batches}: it goes on only with batches of "
                f"the same size, not of {size} samples"
            )
        batches, rest = divmod(position, size)
        if rest:
            saved_on = place_in_state(state)[1] if "of" in state else here
            if saved_on != here:
                raise StateError(
                    f"the state was saved on one of {saved_on} ranks after {position} samples of its own, and no batch of {size} begins there on one of "
                    f"{here}: go on with {saved_on} ranks and their batch size, or save states between epochs. A sampler that is known to deal all of the "
                    "data set, such as a DistributedSampler given as sampler=, goes on with any number of ranks"
                )
            raise StateError(
                f"the state was saved after {position} samples; with batches of {size} no batch begins there. Choose a batch_size that divides {position}"
            )
    beyond = numbers_in(state.get("beyond", ""), 1 << 62)
    resumed = Resumed(epoch, batches, position)
    if "list" in state:
        # Of the samples, however they are cut into batches.
        check_state(state, "list")
        resumed.place, resumed.digest = place_in_state(state), state["list"]
    return resumed, [number for number in beyond if number >= batches]


class _Mark(int):
    """The number of an epoch that nobody has set a sampler to but a state that was loaded."""


class Left:
    """How a state left a sampler of the user's: what the pass that begins is, as long as nobody sets an epoch.

    Args:
        sampler: The sampler, which is set to the epoch that the state knows.
        state: The state.
        epoch: Where it goes on.
        is_within: Whether that is within a pass.

    Attributes:
        again: How many passes of the same epoch come before the one that begins.

    Raises:
        StateError: It is damaged.
    """

    def __init__(self, sampler: Any, state: dict[str, Any], epoch: int, *, is_within: bool) -> None:
        told = state.get("told", epoch)
        self.again = state.get("again", 0)
        for name, number in (("told", told), ("again", self.again)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
                raise StateError(f"the state is damaged: its {name} is {number!r:.60}, and would be a number from 0")
        if epoch != state["epoch"]:
            # It was over. Where the sampler was set to no other one, that is read again.
            self.again = self.again + 1 if told == state["epoch"] else 0
        self.is_within = is_within
        self._sampler, self._mark, self._is_marked = sampler, _Mark(told), False
        self._listeners: list[_Listener] = []
        if "told" in state or _set_to(sampler) is not None:
            set_epoch(sampler, self._mark)
            self._is_marked = _set_to(sampler) is self._mark
        else:
            # It keeps its epoch to itself, so nobody knows whether it was ever set to one: it stays as it is, and is listened to.
            able = [part for part in _parts(sampler) if hasattr(part, "set_epoch") and hasattr(part, "__dict__")]
            self._listeners = [_Listener(part) for part in able]

    def is_as_left(self) -> bool:
        """Whether nobody has set an epoch since."""
        if self._listeners:
            return all(listener.told is None for listener in self._listeners)
        found = _set_to(self._sampler)
        return found is self._mark if self._is_marked else found is None or operator.index(found) == self._mark

    def told(self) -> int | None:
        """The epoch that the sampler was set to since, or is set to; None: it doesn't say."""
        heard = [listener.told for listener in self._listeners if listener.told is not None]
        return int(operator.index(heard[-1])) if heard else epoch_of(self._sampler)

    def release(self) -> None:
        """Listens no more."""
        for listener in self._listeners:
            listener.release()


class _Listener:
    """Stands before a sampler's `set_epoch` and notes which epoch it is told."""

    def __init__(self, part: Any) -> None:
        self.told: Any = None
        self._part, self._before = part, vars(part).get("set_epoch")
        self._set: Any = part.set_epoch
        part.set_epoch = self

    def __call__(self, epoch: Any) -> Any:
        self.told = epoch
        return self._set(epoch)

    def release(self) -> None:
        if vars(self._part).get("set_epoch") is not self:
            return
        if self._before is None:
            del self._part.set_epoch
        else:
            self._part.set_epoch = self._before


def place_in(sampler: Any) -> tuple[int, int] | None:
    """Rank and number of ranks that a sampler deals an epoch among; None: it doesn't say."""
    for part in _parts(sampler):
        found = getattr(part, "rank", None), getattr(part, "num_replicas", None)
        if all(isinstance(number, int) and not isinstance(number, bool) for number in found):
            return found[0], found[1]  # type: ignore[return-value] # they are numbers
    return None


def place_in_state(state: dict[str, Any]) -> tuple[int, int]:
    """The rank that a state was saved on, and how many there were."""
    of = state.get("of")
    if not isinstance(of, (list, tuple)) or len(of) != 2 or not all(type(number) is int for number in of):
        raise StateError(f"the state is damaged: the rank that saved it is {of!r:.60}, and would be two numbers")
    return of[0], of[1]


def _parts(sampler: Any) -> list[Any]:
    """A sampler, and the one that a batch sampler takes its samples from."""
    return [part for part in (sampler, getattr(sampler, "sampler", None)) if part is not None]


def epoch_of(sampler: Any) -> int | None:
    """The epoch that a sampler is set to; None: it doesn't say."""
    epoch = _set_to(sampler)
    return None if epoch is None else int(operator.index(epoch))


def _set_to(sampler: Any) -> Any:
    for part in _parts(sampler):
        epoch: Any = getattr(part, "epoch", None) if hasattr(part, "set_epoch") else None
        if hasattr(epoch, "__index__") and not isinstance(epoch, bool):
            return epoch
    return None


def set_epoch(sampler: Any, epoch: int) -> None:
    """Sets a sampler to an epoch, if it has any."""
    for part in _parts(sampler):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def _twin(sampler: Any) -> Any:
    """A copy that draws the same; None: none can be had. What a sampler only looks at is not copied: its data set, a model."""
    parts = _parts(sampler)
    own = any(hasattr(part, "set_epoch") or getattr(part, "generator", None) is not None for part in parts)
    sequential = type(parts[-1]) is SequentialSampler
    if not own and not sequential:
        return None
    looked_at = (
        value
        for part in parts
        for name, value in getattr(part, "__dict__", {}).items()
        if name in ("data_source", "dataset") or isinstance(value, (data.Dataset, torch.nn.Module))
    )
    try:
        return copy.deepcopy(sampler, {id(value): value for value in looked_at})
    except Exception:  # noqa: BLE001 (whatever a sampler's own copying raises)
        return None


def known(sampler: Any, samples: int, generator: torch.Generator | None = None) -> dict[str, Any] | None:
    """The plan's own kind for one of torch's samplers: kind, seed, ranks; None: it has none.

    Args:
        sampler: The sampler.
        samples: Of the data set: the plan has no kind for a part of it.
        generator: The loader's, which draws from it too.
    """
    if type(sampler) is SequentialSampler and len(sampler) == samples:
        return {"kind": "sequential", "seed": 0, "world": 1, "rank": 0, "trims": False}
    if type(sampler) is DistributedSampler and len(sampler.dataset) == samples:  # type: ignore[arg-type] # it has a length
        kind = "torch_distributed" if sampler.shuffle else "sequential"
        return {
            "kind": kind,
            "seed": sampler.seed,
            "world": sampler.num_replicas,
            "rank": sampler.rank,
            "trims": sampler.drop_last,
        }
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.generator not in (None, generator):
        own: Any = sampler.generator
        if sampler.num_samples == len(sampler.data_source) == samples and is_fresh(own):
            return {
                "kind": {"torch_random": {"draws": "sampler_only"}},
                "seed": own.initial_seed(),
                "world": 1,
                "rank": 0,
                "trims": False,
            }
    return None


def is_fresh(generator: torch.Generator) -> bool:
    """Whether nothing was drawn from a generator since it was seeded."""
    twin = torch.Generator(device=generator.device).manual_seed(generator.initial_seed())
    return bool(torch.equal(twin.get_state(), generator.get_state()))


def _samples_of(batches: list[list[int]]) -> NDArray[np.uint64]:
    return np.fromiter(chain.from_iterable(batches), np.uint64, sum(map(len, batches)))


def digest(batches: list[list[int]], before: int = 0) -> int:
    """A checksum of batches' samples, which goes on from that of the batches before."""
    return zlib.crc32(_samples_of(batches).tobytes(), before)


class GivenRun(Run):
    """A run whose epochs are supplied as they become known.

    Plan and agent number the lists that they are given (`lap`), each once: an epoch may have another list the next time.
    """

    def __init__(
        self, dataset: _dataset.Dataset, lists: Lists, first: list[list[int]], cache: Cache, word: Word, **keywords: Any
    ) -> None:
        sizes = {len(batch) for batch in first[:-1]} or {len(first[0])}
        self.regular = len(sizes) == 1 and 0 < len(first[-1]) <= max(sizes)
        self.lists = lists
        self._length = sum(map(len, first))
        #: By epoch: the list's lap, and the batches.
        self._laps: dict[int, tuple[int, list[list[int]]]] = {}
        #: Passes that are read, whose lists are needed however many began since.
        self.under_way: weakref.WeakSet[Any] = weakref.WeakSet()
        self._digested = (-1, 0, 0)
        global_batch = sizes.pop() if self.regular else 1
        order = order_of(dataset, self._length, global_batch)
        # Laps are not epochs: the agent reads ahead what it was given.
        keywords["settings"] = {"epochs": None}
        super().__init__(dataset, order, Ranks(0, 1, (0,), word.of(shared=False)), cache, **keywords)

    def _without_end(self) -> Run:
        # The agent knows of no end: it has what it was given.
        self.epochs = None
        return self

    @property
    def batches(self) -> dict[int, list[list[int]]]:
        """The lists that are known, by epoch."""
        return {epoch: batches for epoch, (_, batches) in self._laps.items()}

    def lap(self, epoch: int) -> int:
        """By which number agent and plan know an epoch's list."""
        return self._laps[epoch][0]

    def supply(self, epoch: int, batches: list[list[int]]) -> None:
        """Tells plan and agent what an epoch reads.

        Raises:
            InvalidError: It has another number of samples than the first, or other batches where those were equal.
        """
        lap, known = self._laps.get(epoch, (-1, None))
        last = max((lap for lap, _ in self._laps.values()), default=-1)
        # The agent keeps the latest two.
        if known == batches and lap >= last - 1:
            return
        misfit = self.misfit(epoch, batches)
        if misfit is not None:
            raise InvalidError(misfit)
        ends = [number for batch in batches if batch for number in (min(batch), max(batch))]
        check_samples(ends, self.order.samples)
        samples = _samples_of(batches)
        lap = last + 1
        # The one before may be read yet, and what was foreseen wrongly lies between.
        read = {each.epoch for each in self.under_way}
        self._laps = {known: kept for known, kept in self._laps.items() if kept[0] >= lap - 2 or known in read}
        self._laps[epoch] = (lap, batches)
        self.plan.supply(lap, samples)
        self.attachment().supply(lap, samples)

    def misfit(self, epoch: int, batches: list[list[int]]) -> str | None:
        """Why an epoch is none of this run's, which was made for the first one that was seen; None: it is one."""
        length, size = sum(map(len, batches)), self.order.global_batch
        if length != self._length:
            return f"the sampler yields {length} samples in epoch {epoch} and {self._length} before; make a loader for each length"
        if self.regular and any(len(batch) != min(size, length - at * size) for at, batch in enumerate(batches)):
            return f"the batch sampler yields batches of {size} samples at first, and of other sizes in epoch {epoch}; make a loader for each size"
        return None

    def restore(self) -> None:
        """Supplies a new agent with what is known."""
        for lap, batches in self._laps.values():
            self.attachment().supply(lap, _samples_of(batches))

    def state(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> dict[str, Any]:
        """A checkpoint; of unequal batches the samples are counted."""
        state = super().state(epoch, batches, beyond)
        if not self.regular and epoch in self._laps:
            state["position"] = self.position(epoch, batches)
        if epoch in self._laps:
            state["list"] = self._digest(epoch, batches)
        return {**state, "batches": batches}

    def _digest(self, epoch: int, batches: int) -> int:
        """Of what was read; only of what came since it was asked for the last time."""
        lap, lists = self._laps[epoch]
        known, had, before = self._digested
        if known != lap or had > batches:
            had, before = 0, 0
        found = digest(lists[had:batches], before)
        self._digested = (lap, batches, found)
        return found

    def readings(self, epoch: int, batch: int) -> Readings:
        """Which readings a batch's samples are: a sampler may yield a sample several times."""
        first = batch * self.order.global_batch if self.regular else self.position(epoch, batch)
        return self.lists.readings(first)

    def position(self, epoch: int, batch: int) -> int:
        """Where the plan has a batch: of unequal ones it counts the samples."""
        return batch if self.regular else sum(map(len, self._laps[epoch][1][:batch]))

    def samples_in(self, epoch: int, batch: int) -> int:
        """Samples in a batch."""
        _, batches = self._laps.get(epoch, (0, []))
        return super().samples_in(epoch, batch) if self.regular else sum(map(len, batches[batch : batch + 1]))

    def __len__(self) -> int:
        return (
            super().__len__() if self.regular else max((len(batches) for _, batches in self._laps.values()), default=0)
        )


class Held:
    """Keeps the list of a pass that is read elsewhere, for as long as it lives."""

    def __init__(self, run: Run, epoch: int) -> None:
        self.epoch = epoch
        if isinstance(run, GivenRun):
            run.under_way.add(self)


class GivenStream(Stream):
    """Batches of unequal sizes, asked for by their reads."""

    def __init__(self, run: GivenRun, epoch: int, first: int, **keywords: Any) -> None:
        self._lists = run.batches[epoch]
        super().__init__(run, epoch, first, **keywords)
        run.under_way.add(self)
        self._count = len(self._lists)

    def _want(self, job: _core.Job, batch: int) -> int:
        if self._overtaken:
            return super()._want(job, batch)
        first = self.run.position(self.epoch, batch)
        reads = [(self._lap, first + at) for at in range(len(self._lists[batch]))]
        return job.want_reads(self.run.rank, reads)

    def _samples(self, batch: int) -> list[int]:
        return self._lists[batch]
