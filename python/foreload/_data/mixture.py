"""Several data sets in one order: `Mixture` and its `Stream`s.

A mixture is a data set whose samples are those of its streams, numbered one stream after the other; loaders take it like any other. What differs
is its order, which the plan computes (`crates/plan/src/order/mixture.rs`): of the first p reads of the run each stream has its share of p, rounded
down or up, and goes through its own samples pass after pass, across the epochs' borders. Nothing of a stream is copied: each process opens it
as it opens any data set, and the agent is told all of their numbers.
"""

from __future__ import annotations

import math
import numbers
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from foreload import _core
from foreload._data.dataset import Dataset
from foreload._node.source import Opened, Source
from foreload._settings import numbers as _numbers
from foreload._settings.order import check_name
from foreload.errors import ClosedError, DeniedError, InvalidError

#: What the plan takes the weights to add up to at most, in whole numbers.
_MOST_WEIGHT = 1 << 16
#: The largest denominator of a float's fraction, and in how many parts floats are rounded that have no such fractions together.
_DENOMINATOR = 1000
_PARTS = 10_000


@dataclass(frozen=True, eq=False)
class Stream:
    """A data set in a mixture.

    Attributes:
        data: What `foreload.open` answered, or a part of it.
        weight: How much of the mixture it is, in proportion to the others' weights. Whole numbers and fractions hold exactly; a float stands for the
            nearest fraction whose denominator is 1000 at most, so that 0.7 is 7/10 and 1/3 a third.
        name: What `meta.stream` says. Default: its number in the mixture, from 0.
    """

    data: Dataset
    weight: float | Fraction = 1
    name: str | None = None


class Mixture(Dataset):
    """Several data sets, read in proportion to their weights.

    A small stream comes round several times in an epoch, each time in another order; a large one goes on in the next epoch where it stopped. The
    order follows from the seed alone, and resumes at every step on any number of ranks.

    Args:
        streams: The data sets. One may come several times, and has an order of its own each time.
        samples: Reads in an epoch. Default: until the stream that is largest in proportion to its weight has been read once.
        labels: A label is its stream's own number for the class. None: streams must agree on the names of the labels that they share, and `classes`
            has all of them. `own`: they needn't; `classes` is empty then, and `meta.stream` says whose label it is.

    Raises:
        InvalidError: A weight isn't positive, all together can't be kept exactly, the streams disagree about a label's name, or there are none.

    Example:
        >>> photos, sketches = foreload.open("s3://b/photos"), foreload.open("s3://b/sketches")  # doctest: +SKIP
        >>> mixture = foreload.Mixture(
        ...     [foreload.Stream(photos, 0.9, "photos"), foreload.Stream(sketches, 0.1, "sketches")]
        ... )  # doctest: +SKIP
    """

    def __init__(
        self, streams: Iterable[Stream], *, samples: int | None = None, labels: Literal["own"] | None = None
    ) -> None:
        #: The streams, each with its name.
        self.streams = _named(streams)
        if labels not in (None, "own"):
            raise InvalidError(f"Mixture(labels={labels!r}): give None or 'own'")
        #: The streams' weights in lowest terms: reads in as many positions as they add up to.
        self.weights = _whole([stream.weight for stream in self.streams])
        super().__init__(_Sources([stream.data.source for stream in self.streams], [str(s.name) for s in self.streams]))
        self._names_classes = labels is None
        if self._names_classes:
            _agreed(self.streams)
        total = sum(self.weights)
        sizes = [len(stream.data) for stream in self.streams]
        # The plan reads a stream's k-th sample before position (k + 1) * total / weight, rounded up.
        once = max(-(-size * total // weight) for size, weight in zip(sizes, self.weights, strict=True))
        #: Reads in an epoch.
        self.samples = once if samples is None else _numbers.count("Mixture(samples=...)", samples, 1, 1 << 48)

    def stream_of(self, sample: int) -> tuple[str, int]:
        """The name of a sample's stream, and the sample's number there."""
        part, number = self._index.find(self._at(sample))
        return str(self.streams[part].name), number

    def order_kind(
        self, name: str, world: int, *, shuffle: bool, draws: str = "loader_each_epoch"
    ) -> str | dict[str, Any]:
        """The plan's kind of order.

        Raises:
            InvalidError: The streams can't be read in such an order.
        """
        del world, draws
        check_name(name)
        if name not in ("keyed", "sequential"):
            raise InvalidError(
                f"order={name!r} doesn't go with a Mixture, whose streams each have an order of their own: give 'keyed' or 'sequential'"
            )
        sizes = zip(self.streams, self.weights, strict=True)
        streams = [{"samples": len(stream.data), "weight": weight} for stream, weight in sizes]
        return {"mixture": {"streams": streams, "shuffle": bool(shuffle) and name == "keyed", "length": self.samples}}

    @property
    def url(self) -> str:
        """The streams' URLs."""
        return ", ".join(stream.data.url for stream in self.streams)

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels; none with `labels="own"`."""
        return _agreed(self.streams) if self._names_classes else []

    def url_of(self, sample: int) -> str:
        """The URL of a sample's object; of one in a shard with the range of its bytes."""
        part, number = self._index.find(self._at(sample))
        return str(self.streams[part].data.url_of(number))

    def select(self, samples: Any) -> Dataset:  # noqa: ARG002 (as any data set's)
        """Not of a mixture.

        Raises:
            InvalidError: Always.
        """
        raise InvalidError(
            "select, filter, split and slices are for the streams of a mixture: give parts of them as streams"
        )

    def split(self, shares: Mapping[str, float], seed: int = 0) -> dict[str, Dataset]:  # noqa: ARG002
        """Not of a mixture.

        Raises:
            InvalidError: Always.
        """
        return {"": self.select(())}

    def apart(self) -> Mixture:
        """The same mixture for one loader, whose order doesn't concern other readers of it."""
        twin = object.__new__(Mixture)
        twin.__dict__.update(self.__getstate__())
        return twin

    def __getstate__(self) -> dict[str, Any]:
        kept = ("streams", "weights", "samples", "source", "_names_classes", "_reader")
        return {**{name: vars(self)[name] for name in kept}, "meeting": {}}

    def __repr__(self) -> str:
        parts = [
            f"{s.name}: {len(s.data)} samples, weight {w}" for s, w in zip(self.streams, self.weights, strict=True)
        ]
        return f"<foreload.Mixture {'; '.join(parts)}; {self.samples} reads in an epoch>"


def _named(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    given = list(streams) if isinstance(streams, Iterable) else [streams]
    if not given:
        raise InvalidError("Mixture: there is no stream; give a list of foreload.Stream(data, weight=...)")
    for stream in given:
        if not isinstance(stream, Stream):
            raise InvalidError(f"Mixture: {stream!r} is no stream; give a list of foreload.Stream(data, weight=...)")
        if isinstance(stream.data, Mixture):
            raise InvalidError("Mixture: a stream can't be a Mixture itself; give its streams, with their weights")
        if not isinstance(stream.data, Dataset):
            raise InvalidError(f"Stream: {stream.data!r} was not made by foreload.open")
        if not isinstance(stream.name, (str, type(None))):
            raise InvalidError(f"Stream(name={stream.name!r}): give a text")
    named = tuple(
        Stream(stream.data, stream.weight, str(number) if stream.name is None else stream.name)
        for number, stream in enumerate(given)
    )
    names = [stream.name for stream in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidError(f"Mixture: two streams are called {twice!r}; give each a name of its own")
    return named


def _fraction(weight: Any) -> Fraction:
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight <= 0:
        raise InvalidError(f"Stream(weight={weight!r}): give a positive number")
    if isinstance(weight, numbers.Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))
    return Fraction(float(weight)).limit_denominator(_DENOMINATOR)


def _whole(weights: Sequence[Any]) -> tuple[int, ...]:
    """Weights in whole numbers and lowest terms."""
    fractions = [_fraction(weight) for weight in weights]
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * denominator) for fraction in fractions]
    divisor = math.gcd(*whole)
    if all(whole) and sum(whole) // divisor <= _MOST_WEIGHT:
        return tuple(weight // divisor for weight in whole)
    if all(isinstance(weight, numbers.Rational) for weight in weights):
        raise InvalidError(
            f"Mixture: the weights {', '.join(map(str, weights))} add up to {sum(whole) // divisor} in lowest terms, and exact ones may add up to "
            f"{_MOST_WEIGHT}; give rounder numbers, or floats, which are rounded"
        )
    exact = [
        Fraction(weight) if isinstance(weight, numbers.Rational) else Fraction(float(weight)) for weight in weights
    ]
    parts = [round(weight / sum(exact) * _PARTS) for weight in exact]
    if not all(parts):
        least = weights[parts.index(0)]
        raise InvalidError(
            f"Mixture: weight {least} is less than one in {_PARTS} of all; give whole numbers, which hold exactly"
        )
    divisor = math.gcd(*parts)
    return tuple(part // divisor for part in parts)


def _agreed(streams: Sequence[Stream]) -> list[str]:
    """The names of all labels, on which the streams agree."""
    classes: list[str] = []
    givers: list[Any] = []
    for stream in streams:
        for label, name in enumerate(stream.data.classes):
            if label == len(classes):
                classes.append(name)
                givers.append(stream.name)
            elif classes[label] != name:
                raise InvalidError(
                    f"Mixture: label {label} is {classes[label]!r} in stream {givers[label]!r} and {name!r} in stream {stream.name!r}; give data sets "
                    "with the same classes, or labels='own' to keep each stream's labels as they are (meta.stream tells which stream's)"
                )
    return classes


class _Index:
    """The indexes of several data sets as one."""

    def __init__(self, parts: Sequence[_core.Index]) -> None:
        self._parts = parts
        self._borders = [0, *accumulate(map(len, parts))]
        self.digest = parts[0].digest if len(parts) == 1 else _core.digest_of([part.digest for part in parts])
        self.format = "mixture"

    def __len__(self) -> int:
        return self._borders[-1]

    def find(self, sample: int) -> tuple[int, int]:
        """The number of a sample's stream, and the sample's number there."""
        part = bisect_right(self._borders, sample) - 1
        return part, sample - self._borders[part]

    def _of(self, what: str, sample: int) -> Any:
        part, number = self.find(sample)
        return getattr(self._parts[part], what)(number)

    def key(self, sample: int) -> str:
        return str(self._of("key", sample))

    def label(self, sample: int) -> int | None:
        label: int | None = self._of("label", sample)
        return label

    def length(self, sample: int) -> int:
        return int(self._of("length", sample))

    def fields(self, sample: int) -> list[tuple[str, int, int]]:
        return list(self._of("fields", sample))

    def place(self, sample: int) -> tuple[str, int, int, int, str | None]:
        # Streams may have keys in common that name different objects.
        return self.ranges(sample)[0]

    def ranges(self, sample: int) -> list[tuple[str, int, int, int, str | None]]:
        root = self._parts[self.find(sample)[0]].root
        return [(_core.url_of(root, key), *rest) for key, *rest in self._of("ranges", sample)]

    def labels(self) -> bytes:
        return b"".join(part.labels() for part in self._parts)

    def lengths(self) -> bytes:
        return b"".join(part.lengths() for part in self._parts)

    def total_bytes(self) -> int:
        return sum(part.total_bytes() for part in self._parts)


class _Sources(Source):
    """The sources of several data sets as one.

    Args:
        parts: The sources.
        names: Their names.
    """

    def __init__(self, parts: list[Source], names: list[str]) -> None:
        directories = {part.cache_dir for part in parts}
        if len(directories) > 1:
            raise InvalidError(
                f"Mixture: its streams have different cache directories, hence agents ({', '.join(sorted(directories))}); open them with one cache_dir"
            )
        self._parts, self._names = parts, names
        self.cache_dir = parts[0].cache_dir
        self._seen: tuple[list[Opened], Opened] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self._parts, "names": self._names}

    def opened(self) -> Opened:
        """All data sets, opened in this process if they aren't yet."""
        for _ in range(3):
            parts = [part.opened() for part in self._parts]
            seen = self._seen
            if seen is not None and all(map(_is, seen[0], parts)):
                return seen[1]
            # Otherwise the agent ended meanwhile, and those that were open first must be opened at the new one.
            if all(part.agent is parts[0].agent for part in parts):
                first, *rest = parts
                index: Any = _Index([part.index for part in parts])
                opened = Opened(first.agent, first.number, index, "mixture", [part.number for part in rest])
                self._seen = parts, opened
                return opened
        raise ClosedError("the agent ended again and again while the streams of a mixture were opened at it")

    def calls(self) -> list[dict[str, Any]]:
        """What each was opened with."""
        return [call for part in self._parts for call in part.calls()]

    def where_of(self, sample: int) -> str:
        """A sample's object, and what it is called in there, for messages."""
        index: Any = self.opened().index
        part, number = index.find(sample)
        return str(self._parts[part].where_of(number))

    def stream_of(self, sample: int) -> str | None:
        """The name of a sample's stream."""
        index: Any = self.opened().index
        return str(self._names[index.find(sample)[0]])

    @property
    def credentials(self) -> Any:  # type: ignore[override] # an attribute of one source
        """Of some of them; None: of none."""
        return next((part.credentials for part in self._parts if part.credentials is not None), None)

    def renew(self) -> None:
        """As of one, for each."""
        for part in self._parts:
            part.renew()

    def renew_now(self) -> None:
        """Asks the providers for new credentials.

        Raises:
            DeniedError: There is no provider, or one has none.
        """
        provided = [part for part in self._parts if part.credentials is not None]
        if not provided:
            raise DeniedError(
                "the store refuses the credentials, and no stream has a credential_provider to ask for others"
            )
        for part in provided:
            part.renew_now()


def _is(one: object, other: object) -> bool:
    return one is other
