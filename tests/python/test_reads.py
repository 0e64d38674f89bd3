"""Ranks whose loaders ask by name: every byte compared, with padding, small memory, restarts that are apart, and torch's own loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from small import COUNT

PROGRAM = """
import json, sys, time
import torch
import foreload as fl
from foreload.torch import DataLoader, Dataset, Sampler
from small import content, number_of

who, workers, ram, plan = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
rank = int(__import__("os").environ["RANK"])
data = fl.open("s3://data/train")
expected = [content(number_of(data.key(sample))) for sample in range(len(data))]
wrong, seen = [], []

class Named(Dataset):
    "Says which sample it hands over, so that bytes can be compared with what they should be."
    def __getitems__(self, samples):
        return [(int(sample), item[0]) for sample, item in zip(samples, super().__getitems__(samples), strict=True)]

if who == "torch":
    samples = Named(data, cache=fl.Cache(ram=ram))
    sampler = Sampler(samples, seed=3, batch_size=7)
    loader = torch.utils.data.DataLoader(samples, batch_size=7, sampler=sampler, num_workers=workers, collate_fn=list)
    begin = sampler.set_epoch
else:
    decode = lambda raw, meta: (meta.sample, bytes(raw))
    loader = DataLoader(data, 7, shuffle=True, seed=3, cache=fl.Cache(ram=ram), decode=decode, num_workers=workers, collate_fn=lambda pairs: [x for x, _ in pairs])
    begin = loader.set_epoch

for epoch, batches, pause in plan:
    begin(epoch)
    time.sleep(pause * rank)
    got = []
    for number, batch in enumerate(loader):
        for sample, raw in batch:
            got.append(sample)
            if bytes(raw) != expected[sample]:
                wrong.append(sample)
        if number + 1 == batches:
            break
    seen.append(got)
print(json.dumps({"wrong": wrong, "seen": seen}))
"""


def run(world: int, who: str, workers: int, ram: str, plan: list[tuple[int, int, float]]) -> list[dict[str, Any]]:
    place = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "TORCHELASTIC_RUN_ID": "reads"}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, who, str(workers), ram, json.dumps(plan)],
            env={
                **os.environ,
                **place,
                "PYTHONPATH": path,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world
    return [json.loads(output) for output in outputs]


def union(told: list[dict[str, Any]], epoch: int) -> list[int]:
    return sorted(sample for one in told for sample in one["seen"][epoch])


@pytest.mark.parametrize(("world", "workers"), [(2, 0), (3, 2)])
def test_torchs_loader_over_our_sampler_reads_padding_in_its_own_epoch(home: Any, world: int, workers: int) -> None:
    epochs = 3
    told = run(world, "torch", workers, "1MB", [(epoch, 0, 0.0) for epoch in range(epochs)])
    assert [one["wrong"] for one in told] == [[]] * world
    for epoch in range(epochs):
        every = union(told, epoch)
        assert set(every) == set(range(COUNT))
        assert len(every) == -(-COUNT // world) * world


@pytest.mark.parametrize("who", ["ours", "torch"])
def test_ranks_that_start_again_apart_from_each_other_get_their_own_bytes(home: Any, who: str) -> None:
    plan = [(0, 0, 0.0), (1, 5, 0.05), (1, 0, 0.12), (1, 3, 0.05), (0, 6, 0.1), (2, 0, 0.12)]
    told = run(2, who, 0, "1MB", plan)
    assert [one["wrong"] for one in told] == [[], []]
    for at, (_, batches, _) in enumerate(plan):
        every = union(told, at)
        if batches:
            assert len(every) == 2 * 7 * batches
        else:
            assert set(every) == set(range(COUNT))
        # The same batches again, whenever the other rank began.
    for one in told:
        assert one["seen"][1] == one["seen"][2][: 5 * 7]
        assert one["seen"][3] == one["seen"][2][: 3 * 7]
        assert one["seen"][4] == one["seen"][0][: 6 * 7]
