"""A run of Accelerate on each of several ranks: prints the samples this rank trained on, by epoch.

`sys.argv[1]`: `stock` (torch's loader with our Dataset and Sampler, which Accelerate shares out) or `ours` (our loader).
"""

from __future__ import annotations

import json
import sys

import digits
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy

import foreload as fl
from foreload.torch import DataLoader, Dataset, Sampler

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    data = fl.open("s3://learn/digits")
    if sys.argv[1] == "stock":
        loader = torch.utils.data.DataLoader(
            Dataset(data, decode=digits.decode, cache=digits.CACHE),
            sampler=Sampler(data, seed=1, sharding="external"),
            batch_size=digits.BATCH,
            num_workers=1,
        )
    else:
        loader = DataLoader(
            data, digits.BATCH, shuffle=True, seed=1, decode=digits.decode, num_workers=1, cache=digits.CACHE
        )
    model = digits.network()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), loader)
    trained = []
    for _ in range(2):
        trained.append([])
        for images, labels in loader:
            loss = cross_entropy(model(images["pixels"]), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            trained[-1].append(images["sample"].tolist())
    weights = [round(float(value), 6) for value in accelerator.unwrap_model(model).weight.flatten()[:8]]
    print(json.dumps({"trained": trained, "weights": weights, "loader": type(loader).__name__}), flush=True)
    accelerator.end_training()
