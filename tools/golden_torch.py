#!/usr/bin/env python3
"""Writes tests/golden/torch_order.json: what the installed torch reads, in which order.

The Rust implementation of the `torch` orders is tested against this file, so that the test needs no torch. Run it again when a torch
release is to be supported, and look at the difference: there should be none but the version.

    python tools/golden_torch.py            # writes the file
    python tools/golden_torch.py --check    # fails when it would change
"""

import itertools
import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

TARGET = Path(__file__).resolve().parent.parent / "tests" / "golden" / "torch_order.json"


def generator(seed: int) -> torch.Generator:
    """A CPU generator seeded with `seed`."""
    return torch.Generator().manual_seed(seed)


def permutation(samples: int, seed: int) -> dict[str, Any]:
    """`randperm` in short: its beginning and a sum that depends on every place."""
    numbers = torch.randperm(samples, generator=generator(seed))
    weighted = int((numbers * torch.arange(1, samples + 1)).sum()) % 2**64
    return {"samples": samples, "seed": seed % 2**64, "first": numbers[:8].tolist(), "sum": weighted}


def batches(loader: Iterable[list[int]]) -> list[list[int]]:
    """The loader's batches as lists."""
    return [list(batch) for batch in loader]


def distributed(samples: int, seed: int, epoch: int, replicas: int, drops: tuple[bool, bool]) -> dict[str, Any]:
    """What each rank gets from DistributedSampler under a DataLoader with batches of 3."""
    data, batch, (sampler_drops, loader_drops) = list(range(samples)), 3, drops

    def rank(index: int) -> list[list[int]]:
        sampler = DistributedSampler(data, replicas, index, shuffle=True, seed=seed, drop_last=sampler_drops)
        sampler.set_epoch(epoch)
        return batches(DataLoader(data, batch, sampler=sampler, drop_last=loader_drops, collate_fn=list))

    return {
        "samples": samples,
        "seed": seed,
        "epoch": epoch,
        "replicas": replicas,
        "batch": batch,
        "sampler_drops": sampler_drops,
        "loader_drops": loader_drops,
        "ranks": [rank(index) for index in range(replicas)],
    }


def random(samples: int, seed: int, draws: str, workers: int, drops: bool) -> dict[str, Any]:
    """Four epochs of a loader that shuffles with one generator."""
    data, batch, shared = list(range(samples)), 4, generator(seed)
    keywords: dict[str, Any] = {"drop_last": drops, "num_workers": workers, "collate_fn": list}
    if draws == "sampler_only":
        loader = DataLoader(data, batch, sampler=RandomSampler(data, generator=shared), **keywords)
    else:
        persistent = draws == "loader_once"
        loader = DataLoader(data, batch, shuffle=True, generator=shared, persistent_workers=persistent, **keywords)
    epochs = [batches(loader) for _ in range(4)]
    return {
        "samples": samples,
        "seed": seed,
        "draws": draws,
        "workers": workers,
        "batch": batch,
        "drops": drops,
        "epochs": epochs,
    }


def golden() -> dict[str, Any]:
    """Everything that is written."""
    both = (False, True)
    sizes = itertools.product((1, 2, 3, 10, 23, 24, 25), (1, 2, 4), itertools.product(both, both))
    kinds = [
        ("loader_each_epoch", 0),
        ("loader_each_epoch", 2),
        ("loader_once", 2),
        ("sampler_only", 0),
        ("sampler_only", 2),
    ]
    seeds = (0, 1, 2**32 + 7, 2**63 + 12345, -3)
    return {
        "torch": torch.__version__.split("+")[0],
        "permutations": [
            permutation(samples, seed)
            for samples, seed in [*itertools.product((1, 2, 5, 624, 625, 5000), seeds), (1_281_167, 42)]
        ],
        "distributed": [
            distributed(samples, seed, epoch, replicas, drops)
            for (samples, replicas, drops), (seed, epoch) in zip(
                sizes, itertools.cycle([(0, 0), (0, 1), (42, 7), (2**32 - 1, 3)])
            )
        ],
        "random": [
            random(samples, seed, draws, workers, drops)
            for (draws, workers), (samples, seed), drops in itertools.product(
                kinds, [(3, 5), (12, 0), (13, 2**40 + 1)], both
            )
        ],
    }


def main() -> int:
    """Writes the file, or compares."""
    warnings.filterwarnings("ignore", message="Length of split|.*too many workers")
    text = json.dumps(golden(), separators=(",", ":")).replace("},{", "},\n{") + "\n"
    if "--check" in sys.argv[1:]:
        same = TARGET.read_text() == text
        print(f"{TARGET.name}: {'as torch reads' if same else 'torch reads otherwise'}")
        return 0 if same else 1
    TARGET.write_text(text)
    print(f"{TARGET.name}: {len(text)} bytes from torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
