"""A run of Lightning on each of several ranks: prints the samples this rank trained on, by epoch."""

from __future__ import annotations

import json
import sys

import digits
import lightning
from lightning_module import Learner, trainer

import foreload as fl
from foreload.torch import DataLoader

if __name__ == "__main__":
    workers = int(sys.argv[1])
    model = Learner()
    loader = DataLoader(
        fl.open("s3://learn/digits"),
        digits.BATCH,
        shuffle=True,
        seed=1,
        decode=digits.decode,
        num_workers=workers,
        cache=digits.CACHE,
    )
    lightning.seed_everything(1, verbose=False)
    trainer(max_epochs=2, devices=2, strategy="ddp").fit(model, loader)
    weights = [round(float(value), 6) for value in model.network.weight.flatten()[:8]]
    stats = loader.stats()
    gets = stats["requests"] - stats["hedges"]
    print(json.dumps({"trained": model.trained, "weights": weights, "gets": gets}), flush=True)
