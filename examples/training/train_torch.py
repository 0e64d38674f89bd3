"""Trains a small network on images in a bucket; arguments: s3://bucket/prefix EPOCHS."""

import sys

import photos
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def main(url: str, epochs: int) -> None:
    torch.manual_seed(0)
    model = photos.SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"batch_size": 32, "shuffle": True, "generator": torch.Generator().manual_seed(0)}
    options |= {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(photos.BucketFolder(url, photos.decode), **options)
    for number in range(epochs):
        with photos.Epoch(number) as epoch:
            for images, labels in epoch.watch(loader):
                loss = cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                epoch.losses.append(loss.item())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
