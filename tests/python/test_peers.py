"""`Peers`, without any: what is refused, what is read from where, and that a node alone listens nowhere. Real nodes are in `tests/system/test_peers.py`."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import threading
import time
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
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FORELOAD_SECRET_FILE", "~/secret")
    assert fl.Peers().word() == SECRET
    with pytest.raises(errors.InvalidError, match="fewer than 16 characters"):
        fl.Peers(secret=" " * 32).word()
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
    for many in ("255.255.255.255", "224.0.0.1", "0.0.0.0", "::", "ff02::1"):
        with pytest.raises(errors.InvalidError, match="no single machine's address"):
            fl.Peers(secret=SECRET, host=many)
    with pytest.raises(errors.InvalidError, match="wait_s"):
        fl.Peers(secret=SECRET, host="10.0.0.7", wait_s=-1)
    with pytest.raises(errors.InvalidError, match=r"peers='yes'"):
        fl.Cache(peers="yes")  # type: ignore[arg-type]


def test_this_machines_address_is_the_one_that_leads_to_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "localhost"):
        monkeypatch.setenv("MASTER_ADDR", host)
        assert meeting._towards_first(None) in ("127.0.0.1", "::1")
    monkeypatch.setenv("MASTER_ADDR", "nobody.invalid")
    with pytest.raises(errors.InvalidError, match=r"nobody\.invalid"):
        meeting._towards_first(None)
    assert meeting._towards_first(("127.0.0.1", 29512)) == "127.0.0.1"


def test_a_place_to_meet_is_a_host_and_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fl.Peers(secret=SECRET).place() is None
    assert fl.Peers(secret=SECRET, meet="node0.job:29512").place() == ("node0.job", 29512)
    assert fl.Peers(secret=SECRET, meet="[::1]:29512").place() == ("::1", 29512)
    for none in ("node0", ":29512", "node0:", "node0:0", "node0:65536", "node0:-1", "node0:\u0661", "", 29512):
        with pytest.raises(
            errors.InvalidError, match=r"Peers\(meet=...\): .* is no place to meet, such as node0:29512"
        ):
            fl.Peers(secret=SECRET, meet=none)
    monkeypatch.setenv("FORELOAD_MEET", "node0")
    with pytest.raises(errors.InvalidError, match="the variable FORELOAD_MEET: 'node0' is no place"):
        fl.Peers(secret=SECRET)
    monkeypatch.setenv("FORELOAD_MEET", "node0:29512")
    assert fl.Peers(secret=SECRET).place() == ("node0", 29512)


class Communicator:
    """A rank's, of those that a thread each has; as mpi4py's."""

    def __init__(self, rank: int, told: list[str]) -> None:
        self.rank, self.told = rank, told

    def Get_rank(self) -> int:  # noqa: N802 (mpi4py's name)
        return self.rank

    def bcast(self, word: str | None) -> str:
        if word is not None:
            self.told.append(word)
        return self.told[0]


def test_the_first_rank_of_a_communicator_says_where() -> None:
    told: list[str] = []
    first, second = (fl.Peers(secret=SECRET, host="127.0.0.1", meet=Communicator(rank, told)) for rank in range(2))
    assert first == second
    assert first.place() == ("127.0.0.1", int(told[0].partition(":")[2]))
    assert pickle.loads(pickle.dumps(first)) == copy.deepcopy(first) == first


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


class Agent:
    """What a node's agent is told."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.told: list[dict[str, Any]] = []
        #: Whom it doesn't reach, by their ports.
        self.silent: list[int] = []
        self.has_met = False

    def __call__(self, what: str, **fields: Any) -> dict[str, Any]:
        if what == "met":
            self.has_met = self.has_met or bool(fields)
            return {"has": self.has_met}
        if what == "peers":
            self.told.append(fields)
        members = self.told[-1]["members"] if self.told else []
        silent = [(each["id"], "connection refused") for each in members if each["keeps_bytes"] in self.silent]
        address = f"127.0.0.1:{self.port}"
        return {"address": address, "keeps_bytes": self.port, "nodes": len(members), "silent": silent}

    @property
    def ports(self) -> list[int]:
        return [member["keeps_bytes"] for member in self.told[-1]["members"]]


def at_once(met: list[Any], agents: list[Agent]) -> None:
    """They meet, each in a thread of its own."""
    threads = [threading.Thread(target=one.meet, args=(agent,)) for one, agent in zip(met, agents, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def meet(peers: Any, ranks: list[tuple[int, ...]], places: list[str], agents: list[Agent]) -> list[Any]:
    """Nodes meet, each in a thread of its own."""
    met = [
        meeting.Meeting(peers, Ranks(local[0], sum(map(len, ranks)), local), "job", place)
        for local, place in zip(ranks, places, strict=True)
    ]
    at_once(met, agents)
    return met


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()
    monkeypatch.setattr(meeting, "stores", [lambda *_: found])
    return found


PEERS: dict[str, Any] = {"secret": SECRET, "host": "127.0.0.1"}


def test_nodes_tell_their_agents_of_all_and_again_when_one_has_moved(store: Store) -> None:
    agents = [Agent(1000), Agent(2000), Agent(3000)]
    met = meet(fl.Peers(**PEERS), [(0, 1), (2,), (3, 4, 5)], ["a", "b", "c"], agents)
    assert [agent.ports for agent in agents] == [[1000, 2000, 3000]] * 3
    assert len({agent.told[-1]["me"] for agent in agents}) == 3
    # A rank that isn't its node's first waits for that one.
    second = meeting.Meeting(fl.Peers(**PEERS, wait_s=1), Ranks(4, 6, (3, 4, 5)), "job", "c")
    count = len(agents[2].told)
    second.meet(agents[2])
    assert len(agents[2].told) == count
    # It waits no more when its agent is replaced: the first may have ended.
    second.meet(Agent(3001))
    for one, agent in zip(met, agents, strict=True):
        count = len(agent.told)
        one.meet_again(agent)
        assert len(agent.told) == count, "nobody has moved"
    # Its agent was replaced: that is told at once, and the others hear of it.
    agents[1].port = 2001
    met[1].meet(agents[1])
    assert agents[1].ports == [1000, 2001, 3000]
    met[2].meet_again(agents[2])
    assert agents[2].ports == [1000, 2001, 3000]


def test_a_pass_waits_a_second_for_a_silent_store_and_then_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [Agent(1000), Agent(2000)]
    one, other = meet(fl.Peers(**PEERS), [(0,), (1,)], ["a", "b"], agents)
    agents[1].port = 2001
    other.meet(agents[1])
    answers, check = threading.Event(), store.check

    def silent(keys: list[str]) -> bool:
        answers.wait()
        return check(keys)

    monkeypatch.setattr(store, "check", silent)
    monkeypatch.setattr(meeting, "_SOON_S", 0.3)
    took = []
    for _ in range(4):
        begun = time.monotonic()
        one.meet_again(agents[0])
        took.append(time.monotonic() - begun)
    assert took[0] >= 0.3
    assert max(took[0] - 0.3, *took[1:]) < 0.2, took
    assert agents[0].ports == [1000, 2000]
    pickle.dumps(one)
    # It answers at last.
    answers.set()
    for _ in range(100):
        one.meet_again(agents[0])
        if agents[0].ports == [1000, 2001]:
            break
        time.sleep(0.05)
    assert agents[0].ports == [1000, 2001]


def test_a_node_that_gives_up_later_is_asked_no_more_by_who_hears_of_it(store: Store) -> None:
    agents = [Agent(1000), Agent(2000), Agent(3000)]
    met = meet(fl.Peers(**PEERS), [(0,), (1,), (2,)], ["a", "b", "c"], agents)

    def broken(*_: Any, **__: Any) -> dict[str, Any]:
        raise errors.InvalidError("can't answer peers")

    # The agents of two are replaced, and one of them can't listen.
    met[1].meet(broken)
    met[2].meet(agents[2])
    met[0].meet_again(agents[0])
    assert agents[0].ports == [1000, 3000]
    assert agents[2].ports == [1000, 3000]


@pytest.mark.parametrize(
    "after", [[(0,), (1,)], [(0,), (1, 2)], [(0,), (1,), (2,), (3,)], [(0, 1, 2, 3, 4, 5)[:3], (3,)]]
)
def test_what_a_start_before_has_left_in_the_store_is_no_node(store: Store, after: list[tuple[int, ...]]) -> None:
    before = [Agent(100 + number) for number in range(3)]
    meet(fl.Peers(**PEERS), [(0, 1), (2,), (3,)], ["a", "b", "c"], before)
    places = ["c", "a", "d", "e"][: len(after)]
    agents = [Agent(200 + number) for number in range(len(after))]
    meet(fl.Peers(**PEERS, wait_s=20), after, places, agents)
    assert [agent.ports for agent in agents] == [[200 + number for number in range(len(after))]] * len(after)
    # Who comes back is who it was, whichever its ranks are.
    assert agents[0].told[-1]["me"] == before[2].told[-1]["me"]
    assert agents[1].told[-1]["me"] == before[0].told[-1]["me"]


def test_a_node_that_others_do_not_come_to_goes_on_alone_and_waits_once(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_SAY_S", 0.05)
    agent = Agent(1)
    one = meeting.Meeting(fl.Peers(**PEERS, wait_s=0.2), Ranks(0, 3, (0, 1)), "job", "a")
    one.meet(agent)
    assert "waiting for rank 2, to share caches with its node" in caplog.text
    assert "shares its cache with no other: rank 2 did not come in 0.2 s" in caplog.text
    begun = time.monotonic()
    one.meet(agent)
    assert time.monotonic() - begun < 0.1
    assert agent.told == []
    # Who comes after that hears so, and doesn't wait.
    monkeypatch.setattr(meeting, "_GRACE_S", 0.1)
    begun = time.monotonic()
    meeting.Meeting(fl.Peers(**PEERS), Ranks(2, 3, (2,)), "job", "b").meet(agent)
    assert "rank 0 has given up: rank 2 did not come in 0.2 s" in caplog.text
    assert time.monotonic() - begun < 5


def test_a_node_that_cannot_listen_tells_the_others_why(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_GRACE_S", 0.1)

    class Broken(Agent):
        def __call__(self, what: str, **fields: Any) -> dict[str, Any]:
            if what == "listen":
                raise errors.InvalidError("can't answer peers on 10.9.8.7")
            return super().__call__(what, **fields)

    agents = [Agent(1), Broken(2), Agent(3)]
    begun = time.monotonic()
    meet(fl.Peers(**PEERS), [(0,), (1,), (2,)], ["a", "b", "c"], agents)
    assert time.monotonic() - begun < 10
    assert caplog.text.count("rank 1 has given up: can't answer peers on 10.9.8.7") == 2
    assert all(agent.told == [] for agent in agents)


def test_nodes_with_different_secrets_say_so_at_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent(1), Agent(2)]
    met = [
        meeting.Meeting(fl.Peers(secret=secret, host="127.0.0.1", wait_s=7), Ranks(rank, 2, (rank,)), "job", "a")
        for rank, secret in enumerate([SECRET, "another one, of one node alone"])
    ]
    at_once(met, agents)
    assert caplog.text.count("rank 0 and rank 1 have different secrets: set FORELOAD_SECRET") == 2
    assert all(agent.told == [] for agent in agents)


def test_nodes_of_which_one_encrypts_say_so_at_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent(1), Agent(2)]
    met = [
        meeting.Meeting(fl.Peers(**PEERS, wait_s=7, tls=rank == 1), Ranks(rank, 2, (rank,)), "job", "a")
        for rank in range(2)
    ]
    at_once(met, agents)
    assert caplog.text.count("rank 0 and rank 1 differ in Peers(tls=...): give all nodes the same") == 2
    assert all(agent.told == [] for agent in agents)
    with pytest.raises(errors.InvalidError, match=r"Peers\(tls='yes'\): give True or False"):
        fl.Peers(**PEERS, tls="yes")  # type: ignore[arg-type]


def test_nodes_that_differ_in_their_groups_say_so_at_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent(1), Agent(2)]
    met = [
        meeting.Meeting(fl.Peers(**PEERS, wait_s=7, group=group), Ranks(rank, 2, (rank,)), "job", "a")
        for rank, group in enumerate([None, 2])
    ]
    at_once(met, agents)
    assert caplog.text.count("rank 0 and rank 1 differ in Peers(group=...): give all nodes the same") == 2
    assert all(agent.told == [] for agent in agents)


@pytest.mark.parametrize("group", [1, 0, -2, 2.5, True, "4"])
def test_a_group_has_two_nodes_at_least(group: Any) -> None:
    with pytest.raises(errors.InvalidError, match=r"Peers\(group=\.\.\.\)"):
        fl.Peers(**PEERS, group=group)


def test_neighbours_have_neighbouring_numbers() -> None:
    """Groups are made of nodes whose numbers are neighbours."""
    hosts = ["10.0.0.9", "10.0.0.10", "10.0.1.2", "192.168.0.1"]
    numbers = [meeting._node_number(host, "/cache") for host in hosts]
    assert numbers == sorted(numbers)
    addresses = ["fd00::9", "fd00::10", "fd00::1:2"]
    numbers = [meeting._node_number(host, "/cache") for host in addresses]
    assert numbers == sorted(numbers)
    a, b = (meeting._node_number("10.0.0.9", place) for place in ("a", "b"))
    assert a != b
    assert a >> 32 == b >> 32
    assert max(numbers) < 1 << 64


@pytest.mark.parametrize("twice", [0, 1])
def test_two_processes_that_are_the_same_data_rank_are_told_so(
    store: Store, caplog: pytest.LogCaptureFixture, twice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_GRACE_S", 0.1)
    agents = [Agent(port) for port in (1, 2, 3)]
    met = [
        meeting.Meeting(fl.Peers(**PEERS, wait_s=20), Ranks(rank, 2, (rank,)), "job", place)
        for rank, place in ((0, "a"), (1, "b"), (twice, "c"))
    ]
    threads = [threading.Thread(target=one.meet, args=(agent,)) for one, agent in zip(met, agents, strict=True)]
    begun = time.monotonic()
    # The two first, and then the one that they would meet.
    for thread in (threads[twice], threads[2], threads[1 - twice]):
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    assert f"another process is data rank {twice}, too" in caplog.text
    assert 1 <= caplog.text.count("shares its cache with no other") <= 3
    assert time.monotonic() - begun < 19


def test_a_copy_of_a_recipe_in_another_process_meets_nobody() -> None:
    peers = fl.Peers(secret=SECRET, host="127.0.0.1")
    there = meeting.Meeting(peers, Ranks(0, 2, (0,)), "job", "a", _process=1)
    there.meet(lambda *_: pytest.fail("it calls the agent"))


def test_agents_whose_machines_and_directories_have_the_same_names_are_told_apart(store: Store) -> None:
    """As in two containers on the network of one machine: they were taken for one agent, and shared nothing."""
    agents = [Agent(port) for port in (1, 2, 3)]
    meet(fl.Peers(**PEERS), [(0,), (1,), (2,)], ["a", "a", "b"], agents)
    assert all(agent.ports == [1, 2, 3] for agent in agents)
    ids = [[member["id"] for member in agent.told[-1]["members"]] for agent in agents]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) == 3
    assert [agent.told[-1]["me"] for agent in agents] == ids[0]


def test_nodes_that_do_not_reach_each_other_say_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent(port) for port in (1, 2, 3)]
    agents[0].silent = [2]
    meet(fl.Peers(**PEERS), [(0,), (1,), (2,)], ["a", "b", "c"], agents)
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert (
        "this node doesn't reach 1 of the 2 others that it shares with, and reads from the bucket what they keep"
        in told
    )
    assert "rank 1 at 127.0.0.1:2 (connection refused)" in told
    assert "FORELOAD_HOST" in told


def agree(peers: Any, places: list[str]) -> list[list[int]]:
    """What ranks agree on, each in a thread of its own, on nodes of these directories."""
    made = [
        meeting.Assignment(peers, Ranks(rank, len(places), (rank,)), "job", place) for rank, place in enumerate(places)
    ]
    found: list[list[int]] = [[] for _ in places]

    def one(at: int) -> None:
        found[at] = made[at].agree()

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_ranks_agree_on_which_node_each_is_whatever_a_start_before_has_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store outlives its ranks under a launcher alone.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    first = agree(fl.Peers(**PEERS), ["a", "a", "b", "b"])
    assert first == [first[0]] * 4
    a, b = first[0][0], first[0][2]
    assert first[0] == [a, a, b, b]
    assert a != b
    for places in (["b", "a"], ["c", "b", "a", "a"], ["a", "a", "b", "b"], ["b", "b", "b", "c", "a", "a"]):
        again = agree(fl.Peers(**PEERS, wait_s=20), places)
        assert again == [again[0]] * len(places), places
        assert [node == a for node in again[0]] == [place == "a" for place in places], "who comes back is who it was"


def test_a_nodes_number_is_the_one_by_which_the_others_know_it(store: Store) -> None:
    agents = [Agent(1000), Agent(2000)]
    meet(fl.Peers(**PEERS), [(0,), (1,)], ["a", "b"], agents)
    assert agree(fl.Peers(**PEERS), ["a", "b"])[0] == [agent.told[-1]["me"] for agent in agents]


def test_ranks_that_do_not_all_come_read_nothing(store: Store) -> None:
    local = "assign='local'"
    one = meeting.Assignment(fl.Peers(**PEERS, wait_s=0.2), Ranks(0, 2, (0,)), "job", "a", "s3://data/fixed", local)
    told = f"s3://data/fixed: {local} needs all ranks to agree on who reads what, or keeps it, before the first batch: rank 1 did not come"
    with pytest.raises(errors.InvalidError, match=re.escape(told)):
        one.agree()


FREQUENT = ["policy='frequency', epochs=4", "policy='frequency', epochs=40"]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_ranks_that_were_told_otherwise_are_named_at_once(
    store: Store, caplog: pytest.LogCaptureFixture, odd: int
) -> None:
    """One that counts other epochs, and one that counts nothing and is at the other board."""
    failed: dict[int, str] = {}

    def agrees(rank: int, how: str) -> None:
        one = meeting.Assignment(fl.Peers(**PEERS, wait_s=40), Ranks(rank, 3, (rank,)), "job", f"{rank}", "it", how)
        try:
            one.agree()
        except errors.InvalidError as error:
            failed[rank] = str(error)

    def shares(rank: int) -> None:
        one = meeting.Meeting(fl.Peers(**PEERS, wait_s=40), Ranks(rank, 3, (rank,)), "job", f"{rank}", "it")
        one.meet(Agent(rank + 1))

    def ended(threads: list[threading.Thread]) -> float:
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - begun

    others = [rank for rank in range(3) if rank != odd]
    counting = [threading.Thread(target=agrees, args=(rank, FREQUENT[0])) for rank in others]
    assert ended([*counting, threading.Thread(target=agrees, args=(odd, FREQUENT[1]))]) < 20
    named = sorted([f"rank {odd} with {FREQUENT[1]}", f"rank {others[0]} with {FREQUENT[0]}"])
    assert len(failed) == 3
    for text in failed.values():
        assert all(each.removeprefix("rank 0 with ") in text for each in named), text
        assert f"rank {odd}" in text
    # A new start says something else.
    store.clear()
    failed.clear()
    counting = [threading.Thread(target=agrees, args=(rank, FREQUENT[0])) for rank in others]
    assert ended([*counting, threading.Thread(target=shares, args=(odd,))]) < 30
    assert sorted(failed) == others
    assert all(f"rank {odd} reads with the default policy, and rank" in text for text in failed.values())
    assert any(
        FREQUENT[0] in record.message and "shares its cache with no other" in record.message
        for record in caplog.records
    )


def test_a_rank_that_is_not_its_nodes_first_is_named_as_well(store: Store) -> None:
    """Ranks 0 to 2 are one node; rank 1 was told nothing, and waits for rank 0 to meet the others."""
    failed: dict[int, str] = {}

    def agrees(rank: int) -> None:
        place = Ranks(rank, 4, (0, 1, 2) if rank < 3 else (3,))
        one = meeting.Assignment(fl.Peers(**PEERS, wait_s=40), place, "job", "a", "it", FREQUENT[0])
        try:
            one.agree()
        except errors.InvalidError as error:
            failed[rank] = str(error)

    def shares() -> None:
        one = meeting.Meeting(fl.Peers(**PEERS, wait_s=40), Ranks(1, 4, (0, 1, 2)), "job", "a", "it")
        one.meet(Agent(2))

    threads = [threading.Thread(target=agrees, args=(rank,)) for rank in (0, 2, 3)]
    threads.append(threading.Thread(target=shares))
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 30
    assert sorted(failed) == [0, 2, 3]
    assert all("rank 1 reads with the default policy" in text for text in failed.values()), failed


def test_what_an_earlier_start_was_told_is_no_reason_to_end_this_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start of other epochs has met, and its words are still in the store."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def start(how: str) -> None:
        def one(rank: int) -> None:
            given = (fl.Peers(**PEERS, wait_s=30), Ranks(rank, 2, (rank,)), "job", f"{rank}", "it", how)
            # The second is late by more than a second.
            time.sleep(2.5 * rank)
            meeting.Assignment(*given).agree()
            meeting.Meeting(*given).meet(agents[rank])

        agents = [Agent(1), Agent(2)]
        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(len(agent.told[-1]["members"]) == 2 for agent in agents), how

    for how in FREQUENT:
        start(how)


def test_a_rank_waits_for_the_first_of_its_node_whatever_a_start_before_has_left_in_the_store(store: Store) -> None:
    def start(first_comes_s: float) -> tuple[float, list[Agent]]:
        agents = [Agent(1), Agent(2)]
        places = [Ranks(0, 3, (0, 1)), Ranks(1, 3, (0, 1)), Ranks(2, 3, (2,))]
        took: list[float] = []

        def one(place: Ranks) -> None:
            time.sleep(0 if place.rank == 1 else first_comes_s)
            given = (fl.Peers(**PEERS, wait_s=20), place, "job", "a" if place.rank < 2 else "b")
            meeting.Meeting(*given).meet(agents[0] if place.rank < 2 else agents[1])
            if place.rank == 1:
                took.append(time.monotonic() - begun)

        threads = [threading.Thread(target=one, args=(place,)) for place in places]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return took[0], agents

    start(0)
    took, agents = start(2)
    assert took > 2
    assert all(len(agent.told[-1]["members"]) == 2 for agent in agents)


def test_a_store_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def none(_place: Any, _is_host: bool, _ask: Any, rest: Any) -> Any:
        while True:
            rest("the store of rank 0")

    monkeypatch.setattr(meeting, "stores", [none])
    meeting.Meeting(fl.Peers(**PEERS, wait_s=0.3), Ranks(1, 2, (1,)), "job", "a").meet(Agent(1))
    assert "the store of rank 0 did not come in 0.3 s. Give all ranks" in caplog.text


def test_who_waits_says_what_another_waits_to_read(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 2 has another seed: the others don't meet it, and rank 1 waits for rank 0 alone."""

    def one(rank: int) -> None:
        seed = 9 if rank == 2 else 1
        given = (fl.Peers(**PEERS, wait_s=6), Ranks(rank, 3, (rank,)), f"job {seed}", f"{rank}", "it")
        meeting.Meeting(*given, reads=f"s3://data/fixed, seed {seed}").meet(Agent(rank + 1))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = [record.message for record in caplog.records if "shares its cache with no other" in record.message]
    other, ours = "s3://data/fixed, seed 9", "s3://data/fixed, seed 1"
    # Rank 1 finds it out, or hears it of rank 0.
    named = f"rank 2 waits to read {other}, and rank [01] {ours}"
    assert [bool(re.search(named, text)) for text in said].count(True) == 2, said
    assert [f"waits to read {ours}, and rank 2 {other}" in text for text in said].count(True) == 1, said


@pytest.mark.parametrize("odd", [0, 1])
def test_what_an_earlier_start_was_told_hides_nobody_who_was_told_otherwise_now(
    store: Store, monkeypatch: pytest.MonkeyPatch, odd: int
) -> None:
    """All met, and one of them starts again with the default policy: its words of before are where the other waits for it."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    failed: dict[int, str] = {}

    def one(rank: int, again: bool) -> None:
        is_odd = again and rank == odd
        given = (fl.Peers(**PEERS, wait_s=30), Ranks(rank, 2, (rank,)), "job", f"{rank}", "it")
        try:
            if not is_odd:
                meeting.Assignment(*given, FREQUENT[0]).agree()
            meeting.Meeting(*given, "the default policy" if is_odd else FREQUENT[0]).meet(Agent(rank + 1))
        except errors.InvalidError as error:
            failed[rank] = str(error)

    for again in (False, True):
        assert not failed
        begun = time.monotonic()
        threads = [threading.Thread(target=one, args=(rank, again)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert time.monotonic() - begun < 15
    assert list(failed) == [1 - odd]
    assert f"rank {odd} reads with the default policy, and rank {1 - odd} with {FREQUENT[0]}" in failed[1 - odd]


def test_the_default_policy_is_the_default_by_whichever_name() -> None:
    from foreload._run.run import _how

    same = [(None, None), (None, 4), ("foreload", 3), ("frequency", None)]
    assert {_how(policy, epochs, None) for policy, epochs in same} == {"the default policy"}
    others = [_how("frequency", 4, None), _how("frequency", 5, None), _how("lru", None, None), _how(None, 4, "local")]
    assert len({*others, "the default policy"}) == 5


def test_who_reads_what_is_the_loaders_to_say_and_of_whole_objects(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORELOAD_SECRET", SECRET)
    data = fl.open("s3://data/fixed")
    two: dict[str, Any] = {"dp_rank": 0, "dp_size": 2, "assign": "local"}
    with pytest.raises(errors.InvalidError, match="assign='here': give 'local', or nothing"):
        DataLoader(data, 4, assign="here")
    with pytest.raises(errors.InvalidError, match=r"give cache=Cache\(peers=True\)"):
        iter(DataLoader(data, 4, **two)).__next__()
    with pytest.raises(errors.InvalidError, match="nodes keep the samples that they read: give one of them"):
        len(DataLoader(data, 4, **two, policy="frequency"))
    with pytest.raises(errors.InvalidError, match="a sampler that is given says itself"):
        DataLoader(data, 4, sampler=range(8), assign="local")
    mixed = fl.Mixture([fl.Stream(data), fl.Stream(data)])
    with pytest.raises(errors.InvalidError, match="it isn't there for samples in shards or rows, nor for mixtures"):
        DataLoader(mixed, 4, assign="local")
    with pytest.raises(errors.InvalidError, match="nothing of such a data set is cached"):
        DataLoader([1, 2, 3], assign="local")
    # A rank alone reads all there is.
    alone = DataLoader(data, 4, assign="local", dp_rank=0, dp_size=1)
    assert sum(len(labels) for _, labels in alone) == len(data)


def test_processes_of_one_data_rank_share_nothing_and_deal_like_cards_alone(
    home: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a model is split: two of four processes, on a node each, would deal with each other, and the replica's parts would see different samples."""
    told = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "FORELOAD_SECRET": SECRET}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(meeting, "stores", [lambda *_: pytest.fail("it meets somebody")])
    data, some = fl.open("s3://data/fixed"), {"dp_rank": 0, "dp_size": 2}
    cache = fl.Cache(ram="16MB", peers=True)
    with pytest.raises(
        errors.InvalidError, match=r"assign='local' can't be obeyed here: .* several processes have the same"
    ):
        iter(DataLoader(data, 4, assign="local", cache=cache, **some)).__next__()
    assert sum(len(labels) for _, labels in DataLoader(data, 4, cache=cache, **some)) == 102
    assert "Cache(peers=...) does nothing here: this loader counts fewer data ranks" in caplog.text


def test_without_a_launcher_a_second_process_of_a_data_rank_is_refused(store: Store) -> None:
    assert agree(fl.Peers(**PEERS), ["a", "b"])
    late = meeting.Assignment(fl.Peers(**PEERS, wait_s=20), Ranks(0, 2, (0,)), "job", "c", "s3://data/fixed")
    begun = time.monotonic()
    with pytest.raises(errors.InvalidError, match="another process is data rank 0, too"):
        late.agree()
    assert time.monotonic() - begun < 5


def test_a_plan_deals_what_it_was_told_and_nothing_else_later(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    plan = DataLoader(data, 6, shuffle=True, seed=3, dp_rank=0, dp_size=4).run.plan
    cards = [plan.batch(1, 2, rank) for rank in range(4)]
    digest = plan.assign([7, 7, 9, 9], 0)
    dealt = [plan.batch(1, 2, rank) for rank in range(4)]
    assert sorted(itertools.chain(*cards)) == sorted(itertools.chain(*dealt))
    assert [len(each) for each in dealt] == [6] * 4
    assert dealt != cards
    assert plan.assign([7, 7, 9, 9], 0) == digest
    with pytest.raises(ValueError, match="on other nodes already"):
        plan.assign([7, 9, 7, 9], 0)
    with pytest.raises(ValueError, match="2 ranks are said to be on nodes, and 4 data ranks read"):
        DataLoader(data, 6, dp_rank=0, dp_size=4).run.plan.assign([1, 2], 0)
