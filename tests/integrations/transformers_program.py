"""A run of transformers' Trainer on each of several ranks: prints the samples this rank trained on, by step.

`sys.argv[1]`: `sampler` or `loader`, what of ours replaces the Trainer's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import test_transformers

import foreload as fl

if __name__ == "__main__":
    kind = {"sampler": test_transformers.SamplerTrainer, "loader": test_transformers.LoaderTrainer}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as directory:
        trainer = test_transformers.make(kind, fl.open("s3://learn/digits"), Path(directory), 1)
        trainer.train()
    weights = [round(float(value), 6) for value in trainer.model.network.weight.flatten()[:8]]
    print(json.dumps({"trained": trainer.model.trained, "weights": weights}), flush=True)
    trainer.accelerator.end_training()
