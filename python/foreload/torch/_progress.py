"""One pass over torch's own loader: what was drawn for it, what the loop has had of it, and how that becomes a state.

A `Progress` is made when an iterator begins a pass, and known to the iterator and to the loader, neither of which knows the other through it: torch's
workers end when their iterator is dropped. The order of a pass is not kept. It is drawn again, from generators as they stood when the pass
began (`_randomness`), and what the loop has had is left out. A sampler that has a state of its own is asked for it instead.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from foreload._run.position import numbers_in, spans_of
from foreload._run.tally import EpochTally
from foreload.errors import StateError
from foreload.torch import _feed, _lists, _samplers
from foreload.torch._feed import PARTS, STATE, Stated
from foreload.torch._randomness import Draw, generators_of, put_back, standing, unnoticed
from foreload.torch.sampler import Sampler, place_of

#: The layout of a state.
VERSION = 1


#: What may say where it stands: a batch sampler, its sampler, and what draws from them in a pass.
_PARTS = ("order", "sampler", "drawing")


def _sampler_of(order: Any) -> Any:
    """What a batch sampler takes its samples from, or the sampler itself."""
    return _samplers.parts(order)[-1]


def _stated(order: Any, drawing: Any = None) -> dict[str, Any]:
    """The samplers, and iterators of theirs, that say where they stand. Those of a distributed sampler are its epoch's affair."""
    parts = dict(zip(_PARTS, (order, _sampler_of(order), drawing), strict=True))
    return {
        name: part
        for name, part in parts.items()
        if _feed.has_state(part) and not (name == "sampler" and part is order) and not isinstance(part, Sampler)
    }


class Progress:
    """A pass.

    Args:
        loader: The loader.
        number: How many passes came before.
        loaded: The state that it goes on from, of this pass or of the end of the one before; None: it begins anew.
        is_kept: Whether workers live on from one pass to the next.
        is_seeded: Whether they do from the one before, so that torch draws no seed for them.
    """

    def __init__(
        self, loader: Any, number: int, loaded: dict[str, Any] | None, *, is_kept: bool = False, is_seeded: bool = False
    ) -> None:
        self.number = number
        self.order = loader._index_sampler  # noqa: SLF001 (torch's name for it)
        self.told = _samplers.epoch_of(self.order)
        self.tally = EpochTally(number if self.told is None else self.told)
        self._is_iterable = is_iterable(loader)
        #: Batches that the loop has had, and samples in them; the numbers of those that came before others.
        self.had = self.samples = 0
        self.beyond: frozenset[int] = frozenset()
        self.is_over = False
        #: Each worker's state, and which of them sent the last batch. Without workers this process is worker 0 of an iterable data set.
        self.workers: dict[int, dict[str, Any]] = {}
        self.last_worker = -1
        #: The same, a batch or a few samples before.
        self._before_last: dict[int, dict[str, Any]] = {}
        #: Those whose state is of the pass before: they have sent nothing in this one.
        self.unheard: set[int] = set()
        #: Where workers stood when the pass began, those that say so themselves.
        self.begun: dict[int, dict[str, Any]] = {}
        #: Without workers: where a data set that has a state stands, for as long as no batch of it has said so.
        self.standing: Callable[[], dict[str, Any]] | None = None
        #: What was asked for and hasn't come, by number; and by number where the samplers stood then.
        self.asked: dict[int, Any] = {}
        self._stood: dict[int, dict[str, Any]] = {}
        self.drawn = 0
        self._is_drawing = False
        #: What names the samples that were drawn so far, and by number those before the next batch; None: they have no names that last.
        self._list: int | None = 0
        self._lists: dict[int, int | None] = {}
        goes_on = loaded is not None and not loaded["_iterator_finished"] and self._is_of(loaded)
        #: The state that is gone on from, where it is of this pass; and that which was loaded, of whatever pass.
        self.resumed, self.loaded = loaded if goes_on else None, loaded
        #: Whether it failed before the loop had anything of it since the state.
        self.has_failed = False
        #: Batches that failed before the last that the loop has had, and those since.
        self.failed = self._failing = 0
        self._draws: dict[str, Draw] = {}
        self._is_seeded = is_seeded
        #: What torch seeds the workers with; None: it draws that yet.
        self.seed: int | None = None
        #: Whether torch draws the workers' seed from everybody's generator.
        self._seeds_from_everybodys = getattr(loader, "generator", None) is None
        if loaded is not None and (goes_on or loaded["_iterator_finished"]):
            self._restore(loader, loaded, goes_on=goes_on)
            if goes_on or is_kept or not loader.num_workers:
                self.hear_of_before(workers_in(loaded), is_of_this=goes_on)
        self._generators: Mapping[str, Any] = generators_of(loader)
        self._begun = {name: standing(generator) for name, generator in self._generators.items()}
        #: Where its samplers' generators are put back whenever it is made an iterator of: with workers torch makes two, and drops the first.
        self._stand_at = self._begun if goes_on or (loaded is not None and is_kept) else None
        #: What the sampler was asked for again and the workers weren't: it goes on from where it stood when the state was saved.
        self._ahead: deque[Any] = deque()
        #: Batches that it was asked for, those before a resume too; and whether it has said that there are no more.
        self._taken, self._has_ended = 0, False
        #: How everybody's stood when the pass began; None: it began without workers, in the run that is resumed.
        self._before = self._draws.get("loader") or (None if goes_on else Draw.now())
        self._sampled: Draw | None = None
        #: What its sampler said of its length when the pass had begun.
        self._length: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What reads the data set belongs to this process.
        return {**self.__dict__, "standing": None, "_generators": {}}

    def _is_of(self, loaded: dict[str, Any]) -> bool:
        sampler: Any = _sampler_of(self.order)
        if isinstance(sampler, Sampler) and "planned" in loaded["sampler"]:
            return sampler.goes_on
        if self.told is None or isinstance(sampler, Sampler):
            return True
        return bool(loaded["sampler"]["epoch"] in (None, self.told))

    # Going on.

    def _restore(self, loader: Any, state: dict[str, Any], *, goes_on: bool) -> None:
        random = state["random"]
        self._is_seeded = bool(random.get("seeded"))
        if self._is_seeded:
            self.seed = random.get("seed")
        if goes_on:
            ahead = random.get("ahead")
            if ahead is not None:
                # They were put there when the state was loaded, and others may have drawn from them since.
                self._now = own_now(loader)
            put_back_own(loader, state)
        self._draws = {name: Draw.of(random[name]) for name in ("loader", "sampler") if random.get(name)}
        for name, part in _stated(self.order).items():
            if name in state["sampler"] and (
                (goes_on and state["_num_yielded"]) or not isinstance(part, DistributedSampler)
            ):
                part.load_state_dict(copy.deepcopy(state["sampler"][name]))
        self._resume_drawing = state["sampler"].get("drawing") if goes_on else None
        if not goes_on:
            return
        self.had, self.samples = state["_num_yielded"], state["samples"]
        self.failed = state.get("failed_batches", 0)
        self.beyond = frozenset(numbers_in(state["beyond"], 1 << 62))
        self.drawn, self._left_out = self.had, self.beyond
        if self._is_stated(state):
            self._list = None
            self._is_whole = not self.beyond and self.had >= (state.get("batches") or self.had + 1)
            replicas = getattr(_sampler_of(self.order), "num_replicas", 1)
            self.samples = self.samples * state["sampler"]["replicas"] // replicas
            self._stood[self.had - 1] = {name: state["sampler"][name] for name in _PARTS if name in state["sampler"]}
            return
        self.skips = self._batches_to_skip(state)
        if self.skips == state["_num_yielded"]:
            self._asked_ahead = random.get("ahead")
        self._check = self._to_check(state)

    def _to_check(self, state: dict[str, Any]) -> _lists.Resumed | None:
        """What must be as it was when the state was saved."""
        if not state["samples"] or "of" not in state or state["list"] is None:
            return None
        check = _lists.Resumed(self.tally.epoch, self.had, self.samples)
        check.place, check.digest = _lists.place_in_state(state), state["list"]
        if state["sampler"]["replicas"] == getattr(_sampler_of(self.order), "num_replicas", 1):
            check.length = state.get("length")
        return check

    #: How often the sampler is asked for what the loop has had.
    skips = 0
    #: What the sampler was asked for when the state was saved.
    _asked_ahead: dict[str, Any] | None = None
    _left_out: frozenset[int] = frozenset()
    _resume_drawing: Any = None
    #: How the generators stood when the pass went on.
    _now: Mapping[str, Any] = MappingProxyType({})
    _is_whole = False
    #: What must have been read before a resumed pass goes on.
    _check: _lists.Resumed | None = None

    def _is_stated(self, state: dict[str, Any]) -> bool:
        """Whether a sampler itself goes on where it stood."""
        if isinstance(_sampler_of(self.order), Sampler):
            return True
        names = set(_stated(self.order)) & set(state["sampler"])
        return bool((names or self._resume_drawing is not None) and state["_num_yielded"])

    def _batches_to_skip(self, state: dict[str, Any]) -> int:
        size: Any = getattr(self.order, "batch_size", None)
        samples = int(state["samples"])
        if state["is_iterable"]:
            self._refuse_other_batches(state, size)
            return self.had
        if type(self.order) is not BatchSampler or not isinstance(size, int):
            return self.had
        replicas = getattr(_sampler_of(self.order), "num_replicas", 1)
        if (size, replicas) == (state["batch_size"], state["sampler"]["replicas"]):
            return self.had
        here = _samplers.length_of(self.order)
        if here is not None and not self.beyond and self.had >= (state.get("batches") or self.had + 1):
            # The loop has had the epoch's last batch: nothing is left of it, however it is cut.
            self.had = self.drawn = here
            self.samples = len(_sampler_of(self.order))
            return here
        position = samples * int(state["sampler"]["replicas"])
        batches, rest = divmod(position, size * replicas)
        if rest or self.beyond:
            raise StateError(
                f"the state was saved after {position} samples of all ranks; with batches of {size * replicas} over all ranks no batch begins there. "
                f"Choose batch_size so that batch_size * ranks divides {position}"
            )
        self.had, self.samples, self.drawn = batches, position // replicas, batches
        return batches

    def _refuse_other_batches(self, state: dict[str, Any], size: int | None) -> None:
        """Without a state of its data, what the loop has had is read again, batch by batch.

        Raises:
            StateError: Its batches have other sizes now.
        """
        if self.had and not workers_in(state) and size != state["batch_size"]:
            raise StateError(
                f"the state was saved after {self.had} batches of batch_size={state['batch_size']}, and this loader has batch_size={size}: of an iterable data "
                "set without state_dict and load_state_dict nobody knows where a batch of another size would begin; use the same, or give the data set a state"
            )

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Within it torch makes its iterator, which draws the workers' seed."""
        draw = self._draws.get("loader")
        if draw is None:
            with contextlib.nullcontext() if self.resumed is None else unnoticed():
                yield
            return
        if self.resumed is None and draw.led_here():
            # The script has put torch's generator back, and whoever drew from it since then does as he did in the run that is resumed.
            self._draws = {}
            yield
            return
        is_elsewhere = Draw.now().torch_moved(draw)
        with draw.again():
            yield
            if self.resumed is None and not self._is_drawing:
                # What the sampler draws from is how that left it.
                now = Draw.now()
                self._draws["sampler"] = Draw(now.torch_state, None if draw.others is None else now.others)
        if self.resumed is None and is_elsewhere and self._seeds_from_everybodys and not self._is_seeded:
            # Everybody's has moved on all the same, as it does under torch.
            torch.empty((), dtype=torch.int64).random_()

    def go_back(self) -> None:
        """The pass couldn't begin: its generators stand where they stood."""
        for name, generator in self._generators.items():
            put_back(generator, self._begun[name])
        if self.loaded is not None:
            place_planned(self.order, self.loaded)

    def fails(self) -> None:
        """The loop gets an error in place of a batch."""
        self._failing += 1
        first = 0 if self.resumed is None else self.resumed["_num_yielded"]
        self.has_failed = self.loaded is not None and self.had == first

    def begins_to_draw(self) -> None:
        """Torch makes an iterator of the sampler, which may draw at once."""
        for name, generator in self._generators.items():
            # The loader's own has drawn the workers' seed in between, if they hadn't got it before.
            is_sampled = name != "loader" or self._is_seeded
            if is_sampled and self._stand_at is not None and name in self._stand_at:
                put_back(generator, self._stand_at[name])
            elif is_sampled:
                self._begun[name] = standing(generator)

    def seeding(self, loader: Any) -> Any:
        """The loader that torch's iterator is made of: where the pass began without a seed for its workers, its generator isn't drawn from."""
        if not self._is_seeded:
            return loader
        twin, generator = copy.copy(loader), loader.generator or torch.default_generator
        vars(twin)["generator"] = torch.Generator(generator.device).set_state(generator.get_state())
        return twin

    # Drawing.

    def next_index(self, drawing: Iterator[Any]) -> Any:
        """What torch asks for next."""
        index = self._next(drawing) if self._is_drawing else self._first(drawing)
        number, self.drawn = self.drawn, self.drawn + 1
        if self._is_iterable:
            return index
        self.asked[number] = index
        self._lists[number + 1] = self._list
        parts = _stated(self.order, drawing)
        if parts:
            self._stood[number] = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        return index

    def _end(self, drawing: Iterator[Any]) -> None:
        """Ends a pass whose last batch the loop has had, where its sampler itself says where it stands: it may be in the next one by now."""
        self._has_ended = True
        planned: Any = _sampler_of(self.order)
        if isinstance(planned, Sampler):
            # Asked for more, it would begin the next one.
            planned.rest_is_read()
            raise StopIteration
        parts = _stated(self.order)
        said = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        with contextlib.suppress(StopIteration):
            next(drawing)
            for name, part in parts.items():
                part.load_state_dict(said[name])
        raise StopIteration

    def _first(self, drawing: Iterator[Any]) -> Any:
        self._is_drawing = True
        if self._is_whole:
            self._end(drawing)
        draw = self._draws.pop("sampler", None)
        if self._resume_drawing is not None and _feed.has_state(drawing):
            drawing.load_state_dict(copy.deepcopy(self._resume_drawing))  # type: ignore[attr-defined]
        outside = Draw.now()
        with draw.again() if draw is not None else contextlib.nullcontext():
            before = Draw.now()
            try:
                self._skip_had(drawing)
                self._ask_ahead(drawing)
                skipped = Draw.now()
                self._length = _samplers.length_of(_sampler_of(self.order))
                check, self._check = self._check, None
                if check is not None and self._list is not None:
                    check.check_list(self._place(), self._list, self._length)
                self._check_ahead()
                self._lists[self.had] = self._list
                index = self._next(drawing)
            finally:
                after = Draw.now()
                others = before.others if after.others_moved(before) else None
                if others is not None or after.torch_moved(before):
                    self._sampled = Draw(before.torch_state, others)
        if self.skips:
            _go_on_drawing(outside, before, skipped, after)
        return index

    def _skip_had(self, drawing: Iterator[Any]) -> None:
        """Draws again what the loop has had."""
        for batches in range(self.skips):
            try:
                self._take(drawing)
            except StopIteration:
                raise StateError(
                    f"the sampler yields {batches} batches, and the state was saved after {self.skips}: what it draws from, its data set or its arguments are "
                    "others than then"
                ) from None

    def _next(self, drawing: Iterator[Any]) -> Any:
        index = self._take(drawing)
        while self.drawn in self._left_out:
            self.drawn += 1
            index = self._take(drawing)
        return index

    def _take(self, drawing: Iterator[Any]) -> Any:
        index = self._ahead.popleft() if self._ahead else self._asked(drawing)
        if self._list is not None and not self._is_iterable:
            self._list = _named(index, self._list)
        return index

    def _asked(self, drawing: Iterator[Any]) -> Any:
        if self._has_ended:
            raise StopIteration
        try:
            index = next(drawing)
        except StopIteration:
            self._has_ended = True
            raise
        self._taken += 1
        return index

    def _ask_ahead(self, drawing: Iterator[Any]) -> None:
        """Asks the sampler for what it had been asked for when the state was saved, and puts its generators back to where they stood before.

        Workers are ahead of the loop, and whoever shares a generator with this loader may have drawn from it within the pass.
        """
        ahead, self._asked_ahead = self._asked_ahead, None
        if ahead is None:
            return
        with contextlib.suppress(StopIteration):
            while self._taken < ahead["drawn"] or (ahead["ended"] and not self._has_ended):
                self._ahead.append(self._asked(drawing))
        for name, generator in self._generators.items():
            if name in self._now:
                put_back(generator, self._now[name])

    def _list_ahead(self) -> int | None:
        """What names all that the sampler was asked for."""
        return reduce(lambda found, index: None if found is None else _named(index, found), self._ahead, self._list)

    def _check_ahead(self) -> None:
        """Refuses to go on where the sampler yields others now than those that it had been asked for, and of which the loop had none yet.

        Raises:
            StateError: It does.
        """
        state = self.resumed
        if not self.had or not self._ahead or state is None or "of" not in state:
            return
        saved, found = state["random"]["ahead"].get("list"), self._list_ahead()
        if None not in (saved, found) and found != saved and _lists.place_in_state(state) == self._place():
            raise StateError(
                f"the sampler yields others now after its first {self.had} batches than those that workers were asked to read when the state was saved: it draws "
                "batch by batch from torch's own generator, or Python's or NumPy's, and so did others in between; give it a generator of its own"
            )

    def hear_of_before(self, workers: dict[int, dict[str, Any]], *, is_of_this: bool) -> None:
        """Workers' states from before they sent anything in this pass.

        Args:
            workers: By worker.
            is_of_this: Whether they are of this pass.
        """
        self.workers = {**workers, **self.workers}
        if not is_of_this:
            self.unheard |= set(workers)

    def heard(self, found: Stated) -> None:
        """A batch came with where its reader stands."""
        worker, base = found.worker, self.workers.get(found.worker)
        if found.first is not None and found.first.stood is not None:
            base = found.first.stood
        before = None if base is None else {**{name: base[name] for name in PARTS}, **found.read}
        if before is not None and found.read.get("left"):
            self._before_last[worker] = before
        state = before if found.state is None else found.state
        if state is not None:
            self.workers[worker] = state
            self.unheard.discard(worker)

    def left(self) -> dict[int, dict[str, Any]]:
        """Workers' states where this pass is left: those that lead to where they are without a word of theirs that may be of another pass."""
        return {
            worker: state if "end" in state else self._before_last.get(worker, state)
            for worker, state in self.workers.items()
        }

    def _worker_state(self, worker: int) -> dict[str, Any]:
        state = self.workers[worker]
        if worker in self.unheard and not self.is_over:
            state = self.begun.get(worker) or {**state, "begins_anew": True}
        return copy.deepcopy(state)

    def _place(self) -> tuple[int, int]:
        """This process among those that a sampler deals an epoch among: as that says, or the launcher."""
        place = _samplers.place_in(self.order)
        if place is None:
            told = place_of(None, None)
            place = told.rank, told.world
        return place

    # Having.

    def has_had(self) -> None:
        """The loop has had a batch of an iterable data set."""
        self.had, self.has_failed = self.had + 1, False
        self.failed, self._failing = self.failed + self._failing, 0

    def has_had_all_but(self, outstanding: Iterable[int] = ()) -> None:
        """The loop has had all that was asked for but these."""
        waiting = set(outstanding)
        self.has_failed = False
        for number in [number for number in self.asked if number not in waiting]:
            index = self.asked.pop(number)
            self.samples += len(index) if isinstance(index, (list, tuple)) else 1
            self.beyond |= {number}
        while self.had in self.beyond:
            self.beyond -= {self.had}
            self.had += 1
        self._stood = {number: stood for number, stood in self._stood.items() if number >= self.had - 1}
        self._lists = {number: found for number, found in self._lists.items() if number >= self.had}

    # The state.

    def state(self, loader: Any) -> dict[str, Any]:
        """Where the loop stands in it: plain numbers and strings, besides what data set and samplers say themselves."""
        sampler: Any = _sampler_of(self.order)
        parts = dict(self._stood.get(self.had - 1, {}))
        if self.is_over or not self.had:
            parts = {name: copy.deepcopy(part.state_dict()) for name, part in _stated(self.order).items()}
        if isinstance(sampler, Sampler):
            told = None if self.resumed is None or not self._is_whole else self.resumed["sampler"].get("planned")
            batches = _samplers.length_of(self.order)
            # Of what the last batch drops nothing is left to read.
            is_whole = self.is_over or (batches is not None and self.had >= batches and not self.beyond)
            consumed = len(sampler) if is_whole else self.samples
            parts["planned"] = sampler.state_dict(consumed=consumed) if told is None else copy.deepcopy(told)
        state: dict[str, Any] = {
            "version": VERSION,
            "loader": "torch",
            "epoch": self.number + self.is_over,
            "_num_yielded": self.had,
            "_iterator_finished": self.is_over,
            "samples": self.samples,
            "beyond": spans_of(self.beyond),
            "batch_size": getattr(self.order, "batch_size", None),
            "is_iterable": is_iterable(loader),
            "sampler": {"epoch": self.told, "replicas": getattr(sampler, "num_replicas", 1), **parts},
            "batches": _samplers.length_of(self.order),
            "random": self._random(loader),
        }
        if not self._is_iterable and not isinstance(sampler, DistributedSampler):
            # A distributed sampler's state is the same on all ranks, and its epoch and seed say what it yields.
            state |= {"of": list(self._place()), "list": self._lists.get(self.had)}
        if not self._is_iterable and self._length is not None and not self.is_over:
            state["length"] = self._length
        if self.failed:
            state["failed_batches"] = self.failed
        return {**state, **self._of_data(loader)}

    def _random(self, loader: Any) -> dict[str, Any]:
        if self.is_over:
            return random_now(
                loader,
                seeded=loader.persistent_workers,
                seed=self.seed,
                others=self._sampled is not None and self._sampled.others is not None,
            )
        found: dict[str, Any] = {"own": self._begun, "seeded": self._is_seeded}
        if self._is_seeded:
            found["seed"] = self.seed
        if loader.num_workers and "loader" not in self._begun and self._before is not None:
            found["loader"] = Draw(self._before.torch_state).as_dict()
        sampled = self._sampled if self._is_drawing else self._draws.get("sampler") or Draw.now()
        if sampled is not None:
            found["sampler"] = sampled.as_dict()
        # One whose sampler failed at once has drawn nothing that anybody got.
        if self._is_drawing and (self._taken or self._has_ended) and not self._is_iterable:
            asked = {"drawn": self._taken, "ended": self._has_ended, "own": own_now(loader)}
            if not isinstance(_sampler_of(self.order), DistributedSampler):
                asked["list"] = self._list_ahead()
            found["ahead"] = asked
        return found

    def _of_data(self, loader: Any) -> dict[str, Any]:
        if loader.num_workers:
            snapshots = {
                f"worker_{worker}": {"worker_id": worker, **self._worker_state(worker)}
                for worker in sorted(self.workers)
            }
            return {
                "_snapshot": {
                    "_num_workers": loader.num_workers,
                    "_last_yielded_worker_id": self.last_worker,
                    "_worker_snapshots": snapshots,
                }
            }
        if self.workers:
            return self._worker_state(0)
        return {} if self.standing is None else copy.deepcopy(self.standing())


def place_planned(order: Any, state: dict[str, Any]) -> None:
    """Has a sampler of ours go on where a state says."""
    planned: Any = _sampler_of(order)
    if isinstance(planned, Sampler) and "planned" in state["sampler"]:
        planned.load_state_dict(state["sampler"]["planned"])


def own_now(loader: Any) -> dict[str, Any]:
    """How the generators stand that a loader has for itself."""
    return {name: standing(generator) for name, generator in generators_of(loader).items()}


def put_back_own(loader: Any, state: dict[str, Any], *, now: bool = False) -> None:
    """Puts the generators that a loader has for itself where a state says that they stood.

    Args:
        loader: The loader.
        state: The state.
        now: When it was saved; else when its pass began.

    Raises:
        StateError: The state is damaged.
    """
    found, random = generators_of(loader), state["random"]
    ahead = random.get("ahead") if now else None
    for name, stood in (random if ahead is None else ahead)["own"].items():
        if name in found:
            put_back(found[name], stood)


def random_now(loader: Any, *, seeded: bool = False, seed: int | None = None, others: bool = False) -> dict[str, Any]:
    """The generators between two passes, and with what workers that live on were seeded."""
    now = Draw.now()
    return {
        "own": own_now(loader),
        "seeded": seeded,
        **({"seed": seed} if seeded else {}),
        "loader": Draw(now.torch_state, now.others if others else None).as_dict(),
    }


def _go_on_drawing(outside: Draw, begun: Draw, skipped: Draw, after: Draw) -> None:
    """What a sampler draws batch by batch from everybody's generators goes on where it was, or not at all.

    Args:
        outside: As they stand for everybody.
        begun: As they stood when the pass began, which was drawn again since.
        skipped: As the batches that the loop has had left them.
        after: As the next one did.

    Raises:
        StateError: The sampler draws so, and they stand where neither the pass began nor the loop left off.
    """
    by_torch, by_others = after.torch_moved(skipped), after.others_moved(skipped)

    def stand(there: Draw) -> bool:
        return not (by_torch and outside.torch_moved(there)) and not (by_others and outside.others_moved(there))

    if not (by_torch or by_others) or stand(begun):
        return
    if not stand(skipped):
        raise StateError(
            "the sampler draws batch by batch from torch's own generator, or Python's or NumPy's, and those stand where neither the pass began nor the loop "
            "left off: restore them (torch.set_rng_state) before the pass goes on, without workers, or give the sampler a generator of its own"
        )
    Draw(after.torch_state if by_torch else outside.torch_state, after.others if by_others else None).set()


def _named(index: Any, before: int) -> int | None:
    """A checksum of samples' numbers, or names, after that of those before; None: there is one that has none."""
    if hasattr(index, "tolist"):
        index = index.tolist()
    if isinstance(index, (list, tuple)):
        found: int | None = before
        for each in index:
            found = None if found is None else _named(each, found)
        return found
    if not isinstance(index, (int, str)):
        try:
            index = operator.index(index)
        except TypeError:
            return None
    return zlib.crc32(f"{index} ".encode(), before)


def is_iterable(loader: Any) -> bool:
    """Whether a loader's data set is iterable."""
    return isinstance(loader.dataset, torch.utils.data.IterableDataset)


def workers_in(state: dict[str, Any]) -> dict[int, dict[str, Any]]:
    if "_snapshot" in state:
        found = {each["worker_id"]: each for each in state["_snapshot"]["_worker_snapshots"].values()}
    else:
        found = {0: state} if state["is_iterable"] and "dataset_state" in state else {}
    return {
        worker: copy.deepcopy({name: each[name] for name in STATE if name in each}) for worker, each in found.items()
    }
