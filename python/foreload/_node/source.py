"""Where a data set comes from, in a form that travels to other processes, and its opening in each of them.

A `Source` is a URL with options, or a choice of samples of another source. Each process opens it at its own connection to the agent,
which knows data sets by what they were opened with, so that all of them get the same number and the same shared index. When the
agent died, the next use opens it at the new one.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreload import _core
from foreload._node import agent as _agent
from foreload._node.credentials import Credentials
from foreload._settings import environment as _environment
from foreload.errors import ClosedError, DeniedError

#: The options that make up a key of S3.
_KEYS = ("access_key_id", "secret_access_key", "session_token")
#: Called with a step's name, how much is done, and of how much if that is known.
Progress = Callable[[str, int, int | None], object]


class Opened:
    """A data set, open at one agent.

    Attributes:
        agent: This process' connection.
        number: The data set's number there.
        index: Its index.
        origin: Where the index came from: `listed`, `cache`, `saved`, `subset`.
        more: Numbers of further data sets there, whose samples come after its own.
    """

    def __init__(
        self, agent: _core.Agent, number: int, index: _core.Index, origin: str, more: Sequence[int] = ()
    ) -> None:
        self.agent, self.number, self.index, self.origin, self.more = agent, number, index, origin, list(more)
        self.agent_pid = agent.pid
        self.process = os.getpid()

    def is_usable(self) -> bool:
        """Whether this process opened it and the agent still answers."""
        return self.process == os.getpid() and self.agent.is_usable()

    def inherited(self, agent: _core.Agent) -> Opened | None:
        """The same for a forked child's own connection: the index is shared memory, and the agent has numbered the data set."""
        if self.process == os.getpid() or agent.pid != self.agent_pid:
            return None
        try:
            agent.call(json.dumps({"call": "hold", "dataset": self.number}))
        except ClosedError:
            # The parent ended long ago, or the agent has now, which opening it anew will tell.
            return None
        return Opened(agent, self.number, self.index, self.origin)


class Source:
    """A data set's origin.

    Args:
        cache_dir: The agent's cache directory.
        call: The fields of the agent's `open` call.
        credentials: Where its credentials come from, if not from the options.
        samples: Which samples of it make up the data set, as unsigned numbers; None: all.
        progress: Told how far opening is.
        said: What the provider answered when the data set was first opened. All processes open it with these words, by which the agent knows it;
            which credentials are in force there is another matter.
    """

    def __init__(
        self,
        cache_dir: str,
        call: Mapping[str, Any],
        credentials: Credentials | None = None,
        samples: NDArray[np.unsignedinteger[Any]] | None = None,
        progress: Progress | None = None,
        said: Mapping[str, str] | None = None,
    ) -> None:
        self.cache_dir = cache_dir
        self.call = dict(call)
        self.credentials = credentials
        self.samples = samples
        self._progress, self._said = progress, said
        self._whole: Opened | None = None
        self._opened: Opened | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """What other processes need to open it."""
        return {
            "cache_dir": self.cache_dir,
            "call": {**self.call, "refresh": False},
            "credentials": _if_it_travels(self.credentials),
            "samples": self.samples,
            "said": self._said,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Opens nothing yet."""
        self.__init__(**state)  # type: ignore[misc] # the state is the constructor's arguments

    def opened(self) -> Opened:
        """The data set, opened in this process if it isn't yet.

        Raises:
            ForeloadError: What the store says.
        """
        opened = self._opened
        if opened is not None and opened.is_usable():
            return opened
        if opened is not None and opened.process != os.getpid():
            # The parent's lock may have been held when this process was forked.
            self._lock = threading.RLock()
        with self._lock:
            if self._opened is None or not self._opened.is_usable():
                self._opened = _agent.once_more(lambda: self._reach(opened))
            return self._opened

    def _reach(self, opened: Opened | None) -> Opened:
        agent = _agent.connect(self.cache_dir)
        return (opened and opened.inherited(agent)) or self._open(agent)

    def _open(self, agent: _core.Agent) -> Opened:
        if self._whole is None or not self._whole.is_usable():
            self._whole = Opened(agent, *self._call(agent))
            # A listing that was asked for once is not asked for again by each process and after each failure; and from now on it is this data set,
            # even if its index is written again.
            self.call.update(refresh=False, digest=self._whole.index.digest)
        if self.samples is None:
            return self._whole
        return Opened(agent, *agent.subset(self._whole.number, self.samples, self._progress))

    def _call(self, agent: _core.Agent) -> tuple[int, _core.Index, str]:
        known = self._said is not None
        try:
            return self._call_as(agent, self._said if known or self.credentials is None else self.credentials.ask())
        except DeniedError:
            # To a new agent they may be too old.
            if not known or self.credentials is None:
                raise
            return self._call_as(agent, self.credentials.ask())

    def _call_as(self, agent: _core.Agent, said: Mapping[str, str] | None) -> tuple[int, _core.Index, str]:
        call = {**self.call, "storage_options": self._with(said or {})}
        opened = agent.open(json.dumps(call), self._progress)
        self._said = said
        return opened

    def calls(self) -> list[dict[str, Any]]:
        """What its data sets were opened with: one, but for a mixture's."""
        return [self.call]

    def where_of(self, sample: int) -> str:
        """A sample's object, and what it is called in there, for messages."""
        index = self.opened().index
        key, name = index.place(sample)[0], index.key(sample)
        inside = "" if name == key else f", {name!r}"
        return f"{_core.url_of(index.root, key)}{inside}"

    def stream_of(self, sample: int) -> str | None:  # noqa: ARG002 (of a mixture's sources)
        """The name of a sample's stream; None: it is of no mixture."""
        return None

    def choose(self, samples: NDArray[np.unsignedinteger[Any]]) -> Source:
        """Some samples of this source, in a new order.

        Args:
            samples: Their numbers, of 32 or 64 bits, which are kept as they are: nobody may change them any more.
        """
        numbers = samples if self.samples is None else self.samples[samples]
        part = Source(self.cache_dir, self.call, self.credentials, numbers, said=self._said)
        part._whole = self._whole
        return part

    def renew(self) -> None:
        """Asks the provider for new credentials if they are about to expire, and hands them to the agent."""
        if self.credentials is not None and self.credentials.is_due():
            self.renew_now()

    def renew_now(self) -> None:
        """Asks the provider for new credentials.

        Raises:
            DeniedError: There is no provider, or it has none.
        """
        if self.credentials is None:
            raise DeniedError(
                "the store refuses the credentials, and there is no credential_provider to ask for others"
            )
        opened = self.opened()
        call = {"call": "credentials", "dataset": opened.number, "storage_options": self._with(self.credentials.ask())}
        opened.agent.call(json.dumps(call))

    def _with(self, said: Mapping[str, str]) -> dict[str, str]:
        """The options with what a provider said. Of keys it says all: a token of others doesn't go with them."""
        said = _environment.canonical(self.call["url"], said)
        ours = _KEYS if "access_key_id" in said else ()
        return {**{name: value for name, value in self.call["storage_options"].items() if name not in ours}, **said}


def _if_it_travels(credentials: Credentials | None) -> Credentials | None:
    try:
        pickle.dumps(credentials)
    except Exception:  # noqa: BLE001 (whatever a provider's own pickling raises)
        return None
    return credentials
