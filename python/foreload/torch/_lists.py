"""The passes of the user's own sampler, listed.

An epoch is listed when its pass begins and supplied to the plan. Its next epoch is listed early only on a copy that draws from a
generator of its own or depends on `set_epoch`, so that the user's random numbers are never consumed before their time; if the sampler then
yields something else, that is what is read.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import operator
import random
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from foreload._run.readings import Readings
from foreload.errors import InvalidError, StateError
from foreload.torch._feed import has_state
from foreload.torch._randomness import Draw, generators_within, put_back, standing
from foreload.torch._samplers import copy_of, epoch_of, parts, set_epoch

_LOG = logging.getLogger("foreload")


class Lists:
    """The passes of a sampler, as lists of batches.

    Which epoch a pass is of is the sampler's affair, as under torch's own loader: nobody here calls `set_epoch`. What the pass after it will
    yield is asked of a copy, and is a guess: a sampler may depend on more than its copy has.

    Args:
        sampler: A sampler or batch sampler.
        batch_size: Samples in a batch; None: the sampler yields batches.
        drop_last: Whether to leave out a last batch that isn't full.
        most: Samples of a pass that are listed at most, and batches.
        samples: Samples of the data set.
        is_ours: Whether the sampler is none of the user's, so that the loader sets its epochs.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        batch_size: int | None,
        drop_last: bool,
        most: tuple[int, int],
        samples: int,
        *,
        is_ours: bool = False,
    ) -> None:
        self._samples = samples
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.most, self.most_batches = most
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
        #: How often an iterator was made of the sampler for it.
        self.asks = 1
        #: What samplers said of themselves then.
        self._told_before: dict[str, Any] = {}
        #: What the workers' seed is drawn from in each pass before the sampler draws; None: from something else.
        self.seeds: Any = None
        #: Whether it has more than was listed of it, which it draws later; and whether any was asked for of that.
        self._draws_on = self._has_drawn_on = False
        #: Samples of the latest pass, those of a batch that was dropped too; None: it draws on.
        self.length: int | None = None
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
        length = {} if self.length is None else {"length": self.length}
        stood = {name: each for name, each in self._stood.items() if name != "all" or not self._has_drawn_on}
        return {"of": list(self.place), "random": stood | since, **self._told_before, **length}

    def moved_since(self, state: dict[str, Any], resumed: Resumed) -> dict[str, Any]:
        """How a state that was loaded reads before its pass begins: whoever shares a generator with the sampler may have drawn from it since.

        Args:
            state: The state.
            resumed: Where it says that the loop stood.
        """
        random = state.get("random")
        if not isinstance(random, dict) or place_in_state(state) != self.place:
            return {}
        now = self._standing()
        if not resumed.batches:
            return {"random": random | {name: stood for name, stood in now.items() if name in random}}
        return {"random": random | {"since": now}} if "since" in random else {}

    def _said(self) -> dict[str, Any]:
        """What samplers say of themselves that have a state."""
        said = {name: copy.deepcopy(part.state_dict()) for name, part in self._stated()}
        return {"samplers": said} if said else {}

    def _stated(self) -> list[tuple[str, Any]]:
        named = zip(("order", "sampler"), parts(self.sampler), strict=False)
        return [(name, part) for name, part in named if has_state(part)]

    def _standing(self) -> dict[str, Any]:
        return {name: standing(generator) for name, generator in self._generators()}

    def _generators(self) -> list[tuple[str, Any]]:
        return list(generators_of_parts(self.sampler).items())

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

    def drawn_as(self, epoch: int | None) -> int | None:
        """The epoch that the sampler was set to when it drew this pass of the loader's; None: it didn't, or doesn't say."""
        return self._told if epoch == self._drawn_epoch else None

    def draw(self, epoch: int, asks: int = 1) -> Drawn:
        """The pass that begins now.

        Args:
            epoch: What the loader calls it.
            asks: How often the sampler is made an iterator of, the last of which counts: one may draw at once.
        """
        if self._is_ours:
            set_epoch(self.sampler, epoch)
        told = self.told(epoch)
        if told is not None and self._told is not None:
            self._step = told - self._told
        self._told = told
        restored, self._restored = self._restored, None
        self.asks = asks
        since = {} if restored is None else restored["random"].get("since", {})
        if since and restored is not None and restored["of"] == self.place:
            # They were put there when the state was loaded, and others may have drawn from them since.
            since = self._standing()
        everybodys = self._set(restored) if restored is not None else None
        stood, self._told_before = self._standing(), self._said()
        with everybodys.again() if everybodys is not None else contextlib.nullcontext():
            before = Draw.now()
            drawn = self._drawn(_iterator(self.sampler, asks))
            after = Draw.now()
        self._draws_on, self._has_drawn_on, self.length = drawn.rest is not None, False, drawn.samples
        if not self._draws_on:
            self._put_back(since)
        others = before.others if after.others_moved(before) else None
        if others is not None or after.torch_moved(before):
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

    def peek(self, asks: int = 1) -> list[list[int]] | None:
        """The batches of the pass after the one that was drawn last, as far as they can be had without touching the sampler.

        Args:
            asks: How often it will be made an iterator of.
        """
        if not self._is_foreseeable:
            return None
        twin = copy_of(self.sampler)
        if twin is None:
            return None
        told = None if self._told is None else self._told + self._step
        if told is not None:
            set_epoch(twin, told)
        theirs = generators_of_parts(twin)
        for name, generator in self._generators():
            if generator is self.seeds and isinstance(theirs.get(name), torch.Generator):
                # The workers' seed comes first.
                torch.empty((), dtype=torch.int64).random_(generator=theirs[name])
        with _Unnoticed() as noticed:
            drawn = self._drawn(_iterator(twin, asks))
        if noticed.any or drawn.rest is not None:
            # From everybody's random numbers: what it draws next is not known yet. Or more than is listed.
            self._is_foreseeable = False
            return None
        self._foreseen = (told, drawn.batches)
        return drawn.batches

    def _drawn(self, items: Iterator[Any]) -> Drawn:
        dropped: list[int] = []
        batches, left, drawing = [], self.most, self._cut(items, dropped)
        for batch in drawing:
            batches.append(batch)
            # An empty batch counts, too: of those there may be no end either.
            left -= max(1, len(batch))
            if left < 0 or len(batches) > self.most_batches:
                return Drawn(batches, self._drawing_on(drawing))
        return Drawn(batches, samples=sum(map(len, batches)) + len(dropped))

    def _drawing_on(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        self._has_drawn_on = True
        yield from batches

    def _numbers(self, items: Iterable[Any]) -> list[int]:
        """Numbers of samples; negative ones count from the end, as in a list."""
        found, count = _numbers(items), self._samples
        return [number + count if -count <= number < 0 else number for number in found]

    def _cut(self, items: Iterator[Any], dropped: list[int]) -> Iterator[list[int]]:
        """The batches, each when it is asked for, and what is dropped of the pass."""
        if self.batch_size is None:
            for batch in items:
                yield self._numbers(_batch(batch))
            return
        while batch := self._numbers(islice(items, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                dropped += batch
                return
            yield batch


class Drawn:
    """What a sampler yields in a pass.

    Attributes:
        batches: The first batches.
        rest: Those after them, which are drawn later; None: there are none.
        samples: Samples of the pass, those of a batch that was dropped too; None: there are more than was listed.
    """

    def __init__(
        self, batches: list[list[int]], rest: Iterator[list[int]] | None = None, *, samples: int | None = None
    ) -> None:
        self.batches, self.rest, self.samples = batches, rest, samples

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
    #: Samples of the pass.
    length: int | None = None

    def __init__(self, epoch: int, batches: int, position: int) -> None:
        self.epoch, self.batches, self.position = epoch, batches, position

    def check_list(self, place: tuple[int, int], digest: int, length: int | None = None) -> None:
        """Refuses to go on in a list whose beginning is another one than was read, or whose end is elsewhere.

        Args:
            place: This process' rank, and how many there are.
            digest: Of the sampler's first `batches` batches.
            length: Samples of the pass; None: nobody knows.

        Raises:
            StateError: It is.
        """
        if self.digest is None or self.place is None:
            return
        if self.digest == digest:
            if self.place == place and None not in (length, self.length) and length != self.length:
                raise StateError(
                    f"the sampler's pass is {length} long, and was {self.length} when the state was saved: its data set or its arguments are others than then, "
                    "or its length depends on something that the state doesn't know"
                )
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


def generators_of_parts(sampler: Any) -> dict[str, Any]:
    """What a sampler has to draw from, and samplers within it have, by name."""
    return generators_within(dict(zip(("order", "sampler"), parts(sampler), strict=False)))


def _iterator(sampler: Iterable[Any], asks: int) -> Iterator[Any]:
    """The last of so many iterators of a sampler."""
    for _ in range(asks - 1):
        iter(sampler)
    return iter(sampler)


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


def samples_of(batches: list[list[int]]) -> NDArray[np.uint64]:
    return np.fromiter(chain.from_iterable(batches), np.uint64, sum(map(len, batches)))


def digest(batches: list[list[int]], before: int = 0) -> int:
    """A checksum of batches' samples, which goes on from that of the batches before."""
    return zlib.crc32(samples_of(batches).tobytes(), before)


def place_in_state(state: dict[str, Any]) -> tuple[int, int]:
    """The rank that a state was saved on, and how many there were."""
    of = state.get("of")
    if not isinstance(of, (list, tuple)) or len(of) != 2 or not all(type(number) is int for number in of):
        raise StateError(f"the state is damaged: the rank that saved it is {of!r:.60}, and would be two numbers")
    return of[0], of[1]
