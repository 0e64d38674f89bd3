"""`Peers`, without any: what is refused, what is read from where, and that a node alone listens nowhere. Real nodes are in `tests/system/test_peers.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload._node import meeting
from foreload._node.ranks import Ranks
from foreload.torch import DataLoader

SECRET = "known to these nodes only"


def test_nodes_need_a_secret_that_nobody_guesses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FORELOAD_SECRET", "FORELOAD_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.InvalidError, match="openssl rand -hex 32"):
        fl.Cache(peers=True)
    with pytest.raises(errors.InvalidError, match="fewer than 16 characters"):
        fl.Peers(secret="short")
    monkeypatch.setenv("FORELOAD_SECRET_FILE", str(tmp_path / "none"))
    with pytest.raises(errors.InvalidError, match="FORELOAD_SECRET_FILE names, can't be read"):
        fl.Peers()
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    monkeypatch.setenv("FORELOAD_SECRET_FILE", str(tmp_path / "secret"))
    assert fl.Peers().word() == SECRET
    monkeypatch.setenv("FORELOAD_SECRET", "another one, in the environment")
    assert fl.Peers().word() == "another one, in the environment"
    assert fl.Peers(secret=SECRET).word() == SECRET
    assert SECRET not in repr(fl.Cache(peers=fl.Peers(secret=SECRET)))


def test_an_address_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fl.Peers(secret=SECRET).address() is None
    assert fl.Peers(secret=SECRET, host="::1").address() == "::1"
    monkeypatch.setenv("FORELOAD_HOST", "eth0")
    with pytest.raises(errors.InvalidError, match="FORELOAD_HOST: 'eth0' is no address"):
        fl.Peers(secret=SECRET)
    with pytest.raises(errors.InvalidError, match="wait_s"):
        fl.Peers(secret=SECRET, host="10.0.0.7", wait_s=-1)
    with pytest.raises(errors.InvalidError, match=r"peers='yes'"):
        fl.Cache(peers="yes")  # type: ignore[arg-type]


def test_this_machines_address_is_the_one_that_leads_to_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "localhost"):
        monkeypatch.setenv("MASTER_ADDR", host)
        assert meeting._towards_master() in ("127.0.0.1", "::1")
    monkeypatch.setenv("MASTER_ADDR", "nobody.invalid")
    with pytest.raises(errors.InvalidError, match=r"nobody\.invalid"):
        meeting._towards_master()


def test_one_node_meets_nobody_and_listens_nowhere(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORELOAD_SECRET", SECRET)
    monkeypatch.setattr(meeting, "stores", [])
    loader = DataLoader(fl.open("s3://data/fixed"), 8, cache=fl.Cache(ram="16MB", peers=True))
    assert sum(len(labels) for _, labels in loader) == len(loader.dataset)
    assert loader.run.recipe.meeting is None
    assert loader.stats()["peer_hits"] == 0


class Store(dict[str, bytes]):
    """A store of torch's, for one process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_nodes_tell_their_agents_of_all_and_again_when_one_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = Store(), []
    monkeypatch.setattr(meeting, "stores", [lambda _end: store])
    peers = fl.Peers(secret=SECRET, host="127.0.0.1", wait_s=0.1)

    def call(what: str, **fields: Any) -> dict[str, Any]:
        told.append((what, fields))
        return {"address": "127.0.0.1:1000", "keeps_bytes": 7}

    one = meeting.Meeting(peers, Ranks(0, 3, (0, 1)), "job")
    one.meet(call)
    assert [what for what, _ in told] == ["listen"], "the others didn't come"
    # The first node's second rank, and the second node.
    store.set("foreload/job/rank/1", '{"first": 0}')
    store.set("foreload/job/rank/2", '{"first": 2, "address": "127.0.0.1:2000", "keeps_bytes": 9}')
    store.set("foreload/job/told/2", "{}")
    one.meet(call)
    what, fields = told[-1]
    assert (what, fields["me"]) == ("peers", 0)
    own = {"id": 0, "address": "127.0.0.1:1000", "keeps_bytes": 7}
    assert fields["members"] == [own, {"id": 2, "address": "127.0.0.1:2000", "keeps_bytes": 9}]
    count = len(told)
    one.meet_again(call)
    assert len(told) == count, "nothing has changed"
    store.set("foreload/job/rank/2", '{"first": 2, "address": "127.0.0.1:2001", "keeps_bytes": 9}')
    one.meet_again(call)
    assert told[-1][1]["members"][1]["address"] == "127.0.0.1:2001"
    # A rank that isn't its node's first waits for that one.
    other = meeting.Meeting(peers, Ranks(1, 3, (0, 1)), "job")
    count = len(told)
    other.meet(call)
    assert len(told) == count


def test_a_copy_of_a_recipe_in_another_process_meets_nobody() -> None:
    peers = fl.Peers(secret=SECRET, host="127.0.0.1")
    there = meeting.Meeting(peers, Ranks(0, 2, (0,)), "job", _process=1)
    there.meet(lambda *_: pytest.fail("it calls the agent"))
