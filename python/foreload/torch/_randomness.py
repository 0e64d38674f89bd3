"""What the order of torch's own loader depends on besides its sampler: generators, and how they stood when a pass began.

Torch draws at two moments. When an iterator is made, the seed of its workers, from the loader's generator or everybody's; when its sampler is first
asked, the order. A `Draw` keeps everybody's generators as they were before, and lets a resumed loader draw the same again: whoever else uses
those generators doesn't notice, unless they stand where they stood then, in which case they go on as they did.
"""

from __future__ import annotations

import base64
import contextlib
import random
from collections.abc import Iterator, Mapping
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils import data

from foreload.errors import StateError


def text_of(state: torch.Tensor) -> str:
    """A generator's state as text, which JSON takes."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def state_in(text: Any) -> torch.Tensor:
    """What `text_of` was given.

    Raises:
        StateError: It is damaged.
    """
    try:
        return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
    except (TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: a generator's state is {text!r:.60}") from error


#: What a sampler may draw from.
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def standing(generator: Any) -> dict[str, Any]:
    """How a generator stands, in plain numbers and strings."""
    if isinstance(generator, torch.Generator):
        return {"seed": generator.initial_seed(), "state": text_of(generator.get_state())}
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"state": [version, list(words), gauss]}
    state: Any = (
        generator.get_state(legacy=False)
        if isinstance(generator, np.random.RandomState)
        else generator.bit_generator.state
    )
    return {"state": _plain(state)}


def put_back(generator: Any, stood: Any) -> None:
    """Puts a generator where it stood; of one of torch's its state alone will do.

    Raises:
        StateError: What is said of it is damaged.
    """
    try:
        state: Any = stood if isinstance(stood, str) else stood["state"]
        if isinstance(generator, torch.Generator):
            generator.set_state(state_in(state))
        elif isinstance(generator, random.Random):
            version, words, gauss = state
            generator.setstate((version, tuple(words), gauss))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StateError(f"the state is damaged: a generator's state is {stood!r:.60}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


class Draw:
    """Everybody's generators at one moment.

    Args:
        torch_state: Torch's.
        others: Those of `random` and NumPy; None: they don't matter.
    """

    def __init__(self, torch_state: torch.Tensor, others: tuple[Any, Any] | None = None) -> None:
        self.torch_state, self.others = torch_state, others

    @classmethod
    def now(cls) -> Draw:
        """As they stand."""
        return cls(torch.get_rng_state(), (random.getstate(), np.random.get_state(legacy=False)))

    def set(self) -> None:
        """Puts them back."""
        torch.set_rng_state(self.torch_state)
        if self.others is not None:
            random.setstate(self.others[0])
            np.random.set_state(self.others[1])

    def torch_moved(self, since: Draw) -> bool:
        """Whether something was drawn from torch's."""
        return not torch.equal(self.torch_state, since.torch_state)

    def others_moved(self, since: Draw) -> bool:
        """Whether something was drawn from the others."""
        return bool(self._plain() != since._plain())

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """What is drawn within comes as it did at that moment."""
        before = Draw.now()
        self.set()
        stood_there = not before.torch_moved(Draw(self.torch_state)) and (
            self.others is None or not before.others_moved(self)
        )
        try:
            yield
        finally:
            if not stood_there:
                before.set()

    def led_here(self) -> bool:
        """Whether torch's stands where draws lead from that moment, within two million of them; and the others, if they matter, where they stood."""
        now = torch.get_rng_state()
        if self.others is not None and Draw.now().others_moved(self):
            return False
        here, twin = _blocks(now), torch.Generator()
        try:
            twin.set_state(self.torch_state)
        except RuntimeError:
            return False
        for block in range(_MOST_BLOCKS):
            there = _blocks(twin.get_state())
            if there[1] == here[1]:
                return block > 0 or here[0] <= there[0]
            # As many as a block has.
            torch.empty(_BLOCK, dtype=torch.int32).random_(0, 1 << 16, generator=twin)
        return False

    def _plain(self) -> Any:
        if self.others is None:
            return None
        (version, words, gauss), numpy = self.others
        key, at = numpy["state"]["key"].tolist(), numpy["state"]["pos"]
        return [
            [version, list(words), gauss],
            [numpy["bit_generator"], key, at, numpy["has_gauss"], numpy["gauss"]],
        ]

    def as_dict(self) -> dict[str, Any]:
        """In plain numbers and strings."""
        return {"torch": text_of(self.torch_state), "others": self._plain()}

    @classmethod
    def of(cls, state: Any) -> Draw:
        """What `as_dict` answered.

        Raises:
            StateError: It is damaged.
        """
        others = None
        try:
            if state["others"] is not None:
                (version, words, gauss), (name, key, at, has_gauss, left) = state["others"]
                numpy = {"bit_generator": name, "state": {"key": np.asarray(key, np.uint32), "pos": at}}
                others = (version, tuple(words), gauss), {**numpy, "has_gauss": has_gauss, "gauss": left}
            return cls(state_in(state["torch"]), others)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state is damaged: generators' states are {state!r:.60}") from error


#: Numbers that torch's generator, a Mersenne twister, makes at a time, and how many times it is followed.
_BLOCK, _MOST_BLOCKS = 624, 3200


def _blocks(state: torch.Tensor) -> tuple[int, bytes]:
    """Of a state of torch's generator: the numbers that are left of its block, and the block."""
    text = state.numpy().tobytes()
    return int.from_bytes(text[8:12], "little"), text[24 : 24 + 8 * _BLOCK]


@contextlib.contextmanager
def unnoticed(own: torch.Generator | None = None) -> Iterator[None]:
    """Puts everybody's generators back at the end, and one of somebody's own."""
    before, stood = Draw.now(), None if own is None else own.get_state()
    try:
        yield
    finally:
        before.set()
        if own is not None and stood is not None:
            own.set_state(stood)


def generators_of(loader: Any) -> dict[str, Any]:
    """The generators that a loader has for itself: its own, and those of its samplers. One that is several of these is named once."""
    batches = getattr(loader, "batch_sampler", None)
    inner = getattr(batches, "sampler", None)
    samplers = {"batch_sampler": batches, "sampler": loader.sampler if inner is None else inner}
    own = getattr(loader, "generator", None)
    found = {"loader": own} if isinstance(own, torch.Generator) else {}
    return found | {name: each for name, each in generators_within(samplers).items() if each is not own}


#: Samplers within samplers are looked into so deep, and so many that one has in a list.
_DEEPEST, _MOST = 4, 100


def generators_within(samplers: Mapping[str, Any]) -> dict[str, Any]:
    """The generators that samplers draw from, by name; one that has several names is named once.

    They are attributes of the samplers, of their classes, and of samplers and other objects that they hold, or variables that their code names, of its
    module or of the function around it.
    """
    found: dict[str, Any] = {}
    visited = {id(sampler) for sampler in samplers.values()}

    def note(name: str, value: Any) -> None:
        if isinstance(value, GENERATORS) and all(value is not known for known in (*found.values(), *_everybodys())):
            found[name] = value

    def visit(name: str, part: Any, deep: int) -> None:
        for label, value in _within_reach(part):
            note(f"{name}{label}", value)
        for label, each in _parts(part):
            if deep and _is_sampler(each) and id(each) not in visited:
                visited.add(id(each))
                visit(f"{name}{label}", each, deep - 1)

    for name, sampler in samplers.items():
        if sampler is not None:
            visit(name, sampler, _DEEPEST)
    return found


def _within_reach(part: Any) -> Iterator[tuple[str, Any]]:
    """What a sampler may draw from, by name, but for what samplers within it do."""
    yield "", getattr(part, "generator", None)
    for label, each in _parts(part):
        # A method of a generator's draws from it, too.
        yield label, getattr(each, "__self__", each) if callable(each) else each
        for name, held in _held_by(each):
            yield f"{label}.{name}", held
    for name, value in sorted(_variables(part).items()):
        yield f":{name}", value


def _parts(part: Any) -> list[tuple[str, Any]]:
    """A sampler's attributes, and what is in those that are lists, by name."""
    attributes = sorted(_attributes(part).items())
    return [(f".{name}{at}", each) for name, value in attributes for at, each in _elements(value)]


def _attributes(part: Any) -> dict[str, Any]:
    slots = [name for kind in type(part).__mro__ for name in _several(vars(kind).get("__slots__", ()))]
    return {name: getattr(part, name) for name in slots if hasattr(part, name)} | getattr(part, "__dict__", {})


def _several(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _elements(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, (list, tuple)):
        return list(enumerate(value[:_MOST]))
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in islice(value.items(), _MOST)]
    return [("", value)]


def _everybodys() -> tuple[Any, ...]:
    """The generators behind the functions of `random`, NumPy and torch, which a `Draw` keeps."""
    return random.random.__self__, np.random.random.__self__, torch.default_generator  # type: ignore[attr-defined] # they are methods


#: What a sampler holds and doesn't draw from.
_DATA = (data.Dataset, data.DataLoader, torch.nn.Module, torch.Tensor)


def _held_by(value: Any) -> list[tuple[str, Any]]:
    """What an object has that may have a generator of its own."""
    is_held = hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, *_DATA)) and not callable(value)
    return sorted(vars(value).items()) if is_held else []


def _variables(part: Any) -> dict[str, Any]:
    """What a sampler's class has, and what its code names outside: its module's variables, and those of a function around it."""
    kinds = [kind for kind in type(part).__mro__ if kind.__module__.partition(".")[0] not in ("torch", "builtins")]
    found: dict[str, Any] = {}
    for kind in reversed(kinds):
        found |= vars(kind)
    functions = [each for each in (*found.values(), *_attributes(part).values()) if isinstance(each, FunctionType)]
    for function in functions:
        around = function.__globals__
        found |= {name: around[name] for name in _names_in(function.__code__) if name in around}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                found[name] = cell.cell_contents
    return found


def _names_in(code: CodeType) -> set[str]:
    """What code names, and code within it."""
    within = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names_in, within))


def _is_sampler(value: Any) -> bool:
    """Whether something within a sampler may be one: what is iterated, and no data."""
    is_iterated = hasattr(type(value), "__iter__") and hasattr(value, "__dict__")
    return isinstance(value, data.Sampler) or (is_iterated and not isinstance(value, _DATA))
