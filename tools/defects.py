#!/usr/bin/env python3
"""Puts defects back, one by one, and looks whether a test finds each.

Every one of them was found by somebody once, or is the kind that was: what several consumers do to each other. A test that can't fail shows nothing, so
this runs the tests on sources in which something is wrong, in a copy of the working tree, and fails when they pass. It takes some minutes: `make defects`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
PLAN = ["-p", "foreload-plan", "--test", "actors"]
JUMP = ["-p", "foreload-plan", "--lib", "--", "jump::"]
PATIENCE = ["-p", "foreload-plan", "--lib", "--", "patience::"]
PARTS = ["-p", "foreload-engine", "--lib", "--", "bundles::"]
AGENT = ["-p", "foreload-engine", "--test", "agent", "--"]


@dataclass(frozen=True)
class Defect:
    """A defect: what goes wrong, the edits that bring it about, and the tests that are to find it."""

    what: str
    edits: tuple[tuple[str, str, str], ...]
    tests: list[str]


REQUESTS = "crates/plan/src/scheduler/requests.rs"
RESIDENTS = "crates/plan/src/scheduler/residents.rs"
SCHEDULER = "crates/plan/src/scheduler.rs"
WINDOW = "crates/plan/src/scheduler/window.rs"
LOADS = "crates/plan/src/scheduler/loads.rs"
POOL = "crates/engine/src/pool.rs"
PATIENT = "crates/plan/src/scheduler/patience.rs"
PEERS = "crates/plan/src/scheduler/peers.rs"
CLOUD = "crates/store/src/source/cloud.rs"
SEAL = "crates/store/src/source/seal.rs"
JOB = "crates/engine/src/job.rs"
SERVE = "crates/engine/src/peers/serve.rs"
GUESTS = "crates/engine/src/pool/guests.rs"
COMING = "crates/engine/src/carriers/bundles.rs"

DEFECTS = [
    Defect(
        "a delivery takes what isn't loaded yet",
        (
            (RESIDENTS, "(resident.state == State::Ready).then_some(Ready(id))", "Some(Ready(id))"),
            (
                REQUESTS,
                "            State::Ready => self.one_less(request, actions),\n            State::Failed(_) if it.parts == 0",
                "            State::Ready | State::Loading => self.one_less(request, actions),\n            State::Failed(_) if it.parts == 0",
            ),
        ),
        PLAN,
    ),
    Defect(
        "a rank that starts again takes the other ranks' lines along",
        (
            (
                SCHEDULER,
                "            self.empty(place, actions);\n            self.windows.begin(place, step);",
                "            for other in self.windows.places() {\n                self.empty(other, actions);\n            }\n            self.windows.begin(place, step);",
            ),
        ),
        PLAN,
    ),
    Defect(
        "a rank that begins elsewhere waits for what was read ahead where it was",
        ((SCHEDULER, "        self.give_way(place, u64::MAX, actions);\n", ""),),
        JUMP,
    ),
    Defect(
        "a rank that goes on further down waits for what it passes over",
        ((SCHEDULER, "            if skips {", "            if false && skips {"),),
        JUMP,
    ),
    Defect(
        "what a rank stands still for waits behind what another is to read soon",
        (
            (
                REQUESTS,
                "Some(_) if self.group.is_alone() => self.loads.lanes.come_first(resident, asker.job)",
                "Some(_) if self.group.is_alone() => self.loads.lanes.hurry(resident, asker)",
            ),
            (
                REQUESTS,
                "                self.loads.lanes.come_first(resident, job);\n",
                "                let _ = (resident, job);\n",
            ),
        ),
        JUMP,
    ),
    Defect(
        "what is planned again stays where it waited for who needs it later",
        (("crates/plan/src/scheduler/ahead.rs", "        self.hurry(id, self.asker(line));\n", ""),),
        JUMP,
    ),
    Defect(
        "what hangs for one job keeps another's loads from flying",
        (
            (
                "crates/plan/src/scheduler/lanes.rs",
                "        moves.map(|queue| queue.flying).sum()",
                "        moves.map(|queue| queue.flying).sum::<u32>().max(self.in_flight)",
            ),
        ),
        ["-p", "foreload-plan", "--lib", "--", "lanes::"],
    ),
    Defect(
        "a repetition takes the read that another one has claimed",
        (
            (
                REQUESTS,
                "entry.filter(|&entry| claimed.insert(entry))",
                "entry.inspect(|&entry| drop(claimed.insert(entry)))",
            ),
            (REQUESTS, "it.is_free().then_some((line, entry))", "Some((line, entry))"),
        ),
        PLAN,
    ),
    Defect(
        "a loader's own lists are taken over by the next one with an equal plan",
        (
            (
                "crates/engine/src/agent/roster.rs",
                "job.clients() == 0 && !own_lists && same_word == attach",
                "job.clients() == 0 && (own_lists || same_word == attach) && same_word == attach",
            ),
        ),
        [*AGENT, "lists_of_one_loader"],
    ),
    Defect(
        "the reads of a refused batch stay planned behind the consumer",
        (
            (
                REQUESTS,
                "Target::Entry(line, entry) => self.skip_read(line, entry),",
                "Target::Entry(line, entry) => {\n                    if let Some(line) = self.windows.line(line) {\n                        line.entries[entry].waiter = 0;\n                    }\n                }",
            ),
        ),
        ["-p", "foreload-plan", "--lib", "--", "ended_without"],
    ),
    Defect(
        "what waits for a job that all have left flies all the same",
        (
            (SCHEDULER, "        self.give_way(place, u64::MAX, actions);\n", ""),
            (SCHEDULER, "readers().iter().all(|reader| reader.left)", "readers().iter().all(|_| false)"),
        ),
        [*AGENT, "have_left"],
    ),
    Defect(
        "who waits for a sample that can't be had second doesn't hear why",
        (
            (
                POOL,
                "                    let state = self.state.borrow();\n                    contents.iter().find_map(|it| state.troubles.get(it).cloned())",
                "                    let mut state = self.state.borrow_mut();\n                    contents.iter().find_map(|it| state.troubles.remove(it))",
            ),
        ),
        [*AGENT, "hear_why"],
    ),
    Defect(
        "a dead client's wants are withdrawn one by one, while what it held comes back",
        (
            (
                POOL,
                "        for &request in &requests {\n            drop(self.take_want(request));\n        }\n        for request in requests {\n",
                "        for request in requests {\n",
            ),
        ),
        [*AGENT, "dead_client"],
    ),
    Defect(
        "a dead client's wants are withdrawn job by job, while what it held comes back",
        (
            (
                "crates/engine/src/agent.rs",
                "        pools.iter().for_each(|pool| pool.withdraw(connection, None, None));\n        for job in jobs {\n",
                "        drop(pools);\n        for job in jobs {\n            job.withdraw(connection, None);\n",
            ),
        ),
        [*AGENT, "dead_client"],
    ),
    Defect(
        "look-ahead leaves no memory to what other nodes ask for",
        (
            (
                "crates/plan/src/scheduler/memory.rs",
                "            Urgency::Ahead if !self.group.is_alone() => self.staging_bytes / 4,\n",
                "",
            ),
        ),
        PLAN,
    ),
    Defect(
        "a node keeps what is another's to keep",
        (
            (
                "crates/plan/src/scheduler/memory.rs",
                "        if !self.is_ours(content) {\n",
                "        if false {\n",
            ),
        ),
        PLAN,
    ),
    Defect(
        "samples of a second data set are taken for those of the first",
        (
            (
                WINDOW,
                "        node + (sample - first)\n",
                "        let _ = first;\n        node + sample.min(1)\n",
            ),
        ),
        PLAN,
    ),
    Defect(
        "a data set is forgotten while something of it is lent",
        ((SCHEDULER, "            if self.residents.any(|content| shelf.has(content)) {", "            if false {"),),
        PLAN,
    ),
    Defect(
        "leases of another job's client count as given back",
        (
            (
                RESIDENTS,
                "        if self.get(id).leases == 0 {\n            return false;\n        }\n        let before",
                "        if self.get(id).leases == 0 {\n            return false;\n        }\n        self.get_mut(id).leases = 1;\n        let before",
            ),
        ),
        PLAN,
    ),
    Defect(
        "a load that is called off is reported as loaded",
        (
            (
                LOADS,
                "            Outcome::Failed(Failure::Cancelled) => Err(Failure::Cancelled),\n",
                "            Outcome::Failed(Failure::Cancelled) => Ok(()),\n",
            ),
        ),
        PLAN,
    ),
    Defect(
        "a node that is asked for a sample looks for it by a number of its own",
        ((PEERS, "place_one(request, at, own, Urgency::Guest", "place_one(request, at, sample, Urgency::Guest"),),
        PLAN,
    ),
    Defect(
        "whoever answers is believed",
        ((CLOUD, "200..=299 | 404 if !is_sealed =>", "200..=299 | 404 if !is_sealed && false =>"),),
        [*AGENT, "who_does_not_know_the_secret"],
    ),
    Defect(
        "a question that was heard before is answered once more",
        ((SEAL, "        let is_new = !self.has(number);", "        let is_new = true;"),),
        ["-p", "foreload-store", "--lib", "--", "seal::"],
    ),
    Defect(
        "an agent deals like cards what its ranks deal by the nodes",
        ((JOB, "deal: attach.deal.clone(),", "deal: None,"),),
        [*AGENT, "peers::nodes_that_read_what_they_keep"],
    ),
    Defect(
        "a deal goes by the list that an epoch had before",
        ((WINDOW, "        reader.dealt.clear();\n", ""),),
        ["-p", "foreload-plan", "--lib", "--", "window::"],
    ),
    Defect(
        "what a peer sends isn't compared with the checksum that came along",
        ((GUESTS, "sums == Some(&[said.crc]) && self.check", "sums.is_some() && self.check"),),
        [*AGENT, "peers::of_samples_that_come_together"],
    ),
    Defect(
        "what a peer says to be missing is waited for until its answer ends",
        (
            (
                COMING,
                'Verdict::Missing => Error::new(ErrorKind::NotFound, "the peer hasn\'t got it"),',
                "Verdict::Missing => return false,",
            ),
        ),
        ["-p", "foreload-engine", "--lib", "--", "peers::tests::bundles"],
    ),
    Defect(
        "whoever answers for a peer may say what is there",
        (
            (
                SEAL,
                "hmac::verify(&self.key, &of_table(&self.seal, table), seal).is_ok()",
                "!of_table(&self.seal, table).is_empty() && seal.len() == 32",
            ),
        ),
        ["-p", "foreload-store", "--lib", "--", "source::parts"],
    ),
    Defect(
        "a peer's slot is used again before the peer has read it",
        ((SERVE, "until: Instant::now() + limits.progress,", "until: Instant::now(),"),),
        ["-p", "foreload-engine", "--lib", "--", "peers::tests::loans"],
    ),
    Defect(
        "a request that was sent before its answer shows that the answer was read",
        ((SERVE, "self.unread.is_none() || self.said.is_empty() && is_silent(self.line.socket())", "true"),),
        ["-p", "foreload-engine", "--lib", "--", "peers::tests::loans"],
    ),
    Defect(
        "what a rank needs from another node waits behind what is read ahead from that",
        (
            (
                LOADS,
                "Home::Peer(peer) => Some(peer),\n            Home::Here",
                "Home::Peer(_) => None,\n            Home::Here",
            ),
        ),
        PATIENCE,
    ),
    Defect(
        "another node is given up on though it waits for a bucket that is slow for all",
        ((PATIENT, ".clamp(PATIENCE_NS, MOST_PATIENCE_NS)", ".clamp(PATIENCE_NS, PATIENCE_NS)"),),
        PATIENCE,
    ),
    Defect(
        "what another node didn't bring in time comes when it was to be read ahead",
        ((LOADS, "(part.content, self.soonest(part.handle.index, asker))", "(part.content, asker)"),),
        PATIENCE,
    ),
    Defect(
        "a sample of another node that is called off is waited for as long as those that come with it",
        (
            (
                COMING,
                "(0..count).filter(is_off).for_each(|at| self.land(at, None));",
                "let parts = || self.parts.borrow().iter().flatten().count();\n        (0..count).filter(is_off).filter(|_| parts() == actions.len()).for_each(|at| self.land(at, None));",
            ),
        ),
        PARTS,
    ),
    Defect(
        "another node is asked again at once whenever it was waited for in vain",
        ((PATIENT, "if is_bucket_fast && !was_trial {", "if is_bucket_fast && bundle == Some(u64::MAX) {"),),
        PATIENCE,
    ),
    Defect(
        "another node that waits for the same slow bucket is left alone",
        ((PATIENT, "if is_bucket_fast && !was_trial {", "if is_bucket_fast || len > 0 {"),),
        PATIENCE,
    ),
    Defect(
        "a trial of another node that is ill has a rank wait as long as one of a node that is well",
        ((PATIENT, "match (lane.is_on_trial(),", "match (lane.is_on_trial() && bucket_takes_s < 0.0,"),),
        PATIENCE,
    ),
    Defect(
        "what the kernel took back of a mapped file isn't seen when it is touched again soon",
        (("crates/plan/src/window/watch.rs", "        self.unsure = self.granules;\n", ""),),
        ["-p", "foreload-plan", "--lib", "--", "window::"],
    ),
]


def main() -> int:
    """Tries all defects, or those whose description holds a word."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("only", nargs="?", default="", help="those whose description holds this")
    parser.add_argument("--seeds", default="4000", help="schedules that the actors play of each theme")
    asked = parser.parse_args()
    chosen = [defect for defect in DEFECTS if asked.only in defect.what]
    lived = []
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "tree"
        ignored = shutil.ignore_patterns("target", ".venv", ".git", "*.so", "_bin", "__pycache__", ".mypy_cache")
        shutil.copytree(HOME, copy, ignore=ignored, symlinks=True)
        target = os.environ.get("DEFECTS_TARGET") or str(HOME / "target" / "defects")
        env = {**os.environ, "CARGO_TARGET_DIR": target, "FORELOAD_CHAOS_SEEDS": asked.seeds}
        for defect in chosen:
            begun = time.monotonic()
            before = {name: (copy / name).read_text() for name, _, _ in defect.edits}
            for name, sound, wrong in defect.edits:
                text = (copy / name).read_text()
                if text.count(sound) != 1:
                    print(f"{name} holds {text.count(sound)} times, not once: {sound!r}", file=sys.stderr)
                    return 2
                (copy / name).write_text(text.replace(sound, wrong))
            build = ["cargo", "test", "--quiet", *defect.tests]
            what = build[: build.index("--")] if "--" in build else build
            made = subprocess.run([*what, "--no-run"], check=False, cwd=copy, env=env, capture_output=True, text=True)
            if made.returncode != 0:
                print(f"{defect.what}: it doesn't compile\n{made.stderr[-2000:]}", file=sys.stderr)
                return 2
            ran = subprocess.Popen(
                build,
                cwd=copy,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                said, _ = ran.communicate(timeout=120)
                found = ran.returncode != 0
                how = next((line for line in said.splitlines() if "panicked" in line), "")
            except subprocess.TimeoutExpired:
                # Cargo and the test that it runs.
                os.killpg(ran.pid, signal.SIGKILL)
                ran.wait()
                found, how = True, "it hangs"
            if not found:
                lived.append(defect.what)
            took = time.monotonic() - begun
            print(f"{'found' if found else 'LIVES':6} {took:4.0f} s  {defect.what}  {how[:100]}", flush=True)
            for name, text in before.items():
                (copy / name).write_text(text)
    print(f"{len(chosen) - len(lived)} of {len(chosen)} defects found")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
