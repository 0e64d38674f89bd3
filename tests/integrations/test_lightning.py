"""Lightning's Trainer with our loader: every epoch exact, and a checkpoint in the middle of one goes on exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digits
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from lightning_module import Learner, trainer

from foreload.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def make(data: Any, **keywords: Any) -> Any:
    settings = {"batch_size": digits.BATCH, "shuffle": True, "seed": 1, "decode": digits.decode, "cache": digits.CACHE}
    return DataLoader(data, **{**settings, **keywords})


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_trains_on_each_epoch_as_planned_and_validates(data: Any, workers: int) -> None:
    parts = data.split({"train": 0.8, "val": 0.2}, seed=1)
    loader = make(parts["train"], num_workers=workers)
    val = make(parts["val"], shuffle=False, num_workers=workers)
    model = Learner()
    trainer(max_epochs=3, num_sanity_val_steps=2).fit(model, loader, val)
    assert model.trained == {epoch: digits.epoch_of(loader, epoch) for epoch in range(3)}
    whole = digits.epoch_of(val, 0)
    assert model.validated == whole[:2] + 3 * whole, "two steps to look whether it works, then each epoch whole"
    assert sum(model.losses[-5:]) < sum(model.losses[:5]) / 2, "it learns"


@pytest.mark.parametrize(("limit", "steps"), [(5, 5), (0.5, 9)])
def test_limited_epochs_begin_each_with_the_next_shuffle(data: Any, limit: float, steps: int) -> None:
    loader, model = make(data), Learner()
    trainer(max_epochs=3, limit_train_batches=limit).fit(model, loader)
    assert model.trained == {epoch: digits.epoch_of(loader, epoch)[:steps] for epoch in range(3)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [7, 19, 26])
def test_a_checkpoint_goes_on_at_the_batch_and_with_the_weights(
    data: Any, tmp_path: Path, workers: int, at: int
) -> None:
    """In the first epoch, at its very end, in the second; 19 batches are an epoch."""
    undisturbed, loader = Learner(), make(data)
    trainer(max_epochs=3).fit(undisturbed, loader)

    saves: Any = ModelCheckpoint(dirpath=tmp_path, filename="at", every_n_train_steps=at, save_top_k=1)
    begun = Learner()
    trainer(max_steps=at, max_epochs=3, enable_checkpointing=True, callbacks=[saves]).fit(
        begun, make(data, num_workers=workers)
    )
    (checkpoint,) = tmp_path.glob("*.ckpt")
    resumed = Learner()
    trainer(max_epochs=3).fit(resumed, make(data, num_workers=2 - workers), ckpt_path=checkpoint)

    found = [batch for part in (begun, resumed) for batches in part.trained.values() for batch in batches]
    assert found == [batch for batches in undisturbed.trained.values() for batch in batches]
    assert begun.losses + resumed.losses == undisturbed.losses
    assert torch.equal(resumed.network.weight, undisturbed.network.weight)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [7, 19, 26])
def test_a_checkpoint_over_anybodys_data_set_goes_on_at_the_batch(tmp_path: Path, workers: int, at: int) -> None:
    """In the first epoch, at its very end, in the second; Lightning asks for no rest of an epoch that is over."""
    pixels = torch.rand(19 * 4, 64, generator=torch.Generator().manual_seed(2))
    samples = [({"pixels": pixels[at], "sample": at}, at % 10) for at in range(len(pixels))]

    def loader() -> Any:
        return DataLoader(samples, 4, shuffle=True, generator=torch.Generator().manual_seed(1), num_workers=workers)

    undisturbed, begun, resumed = Learner(), Learner(), Learner()
    trainer(max_epochs=3).fit(undisturbed, loader())
    saves: Any = ModelCheckpoint(dirpath=tmp_path, filename="at", every_n_train_steps=at, save_top_k=1)
    trainer(max_steps=at, max_epochs=3, enable_checkpointing=True, callbacks=[saves]).fit(begun, loader())
    (checkpoint,) = tmp_path.glob("*.ckpt")
    trainer(max_epochs=3).fit(resumed, loader(), ckpt_path=checkpoint, weights_only=False)
    found = [batch for part in (begun, resumed) for batches in part.trained.values() for batch in batches]
    assert found == [batch for batches in undisturbed.trained.values() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [3, 5, 10])
def test_a_checkpoint_over_anybodys_data_set_goes_on_where_epochs_are_limited(
    tmp_path: Path, workers: int, at: int
) -> None:
    """At the last step of a limited epoch nothing is left of it, though the sampler has more."""
    pixels = torch.rand(19 * 4, 64, generator=torch.Generator().manual_seed(2))
    samples = [({"pixels": pixels[at], "sample": at}, at % 10) for at in range(len(pixels))]

    def loader() -> Any:
        return DataLoader(samples, 4, shuffle=True, generator=torch.Generator().manual_seed(1), num_workers=workers)

    undisturbed, begun, resumed = Learner(), Learner(), Learner()
    limited = {"max_epochs": 3, "limit_train_batches": 5}
    trainer(**limited).fit(undisturbed, loader())
    saves: Any = ModelCheckpoint(dirpath=tmp_path, filename="at", every_n_train_steps=at, save_top_k=1)
    trainer(**limited, max_steps=at, enable_checkpointing=True, callbacks=[saves]).fit(begun, loader())
    (checkpoint,) = tmp_path.glob("*.ckpt")
    trainer(**limited).fit(resumed, loader(), ckpt_path=checkpoint, weights_only=False)
    found = [batch for part in (begun, resumed) for batches in part.trained.values() for batch in batches]
    assert found == [batch for batches in undisturbed.trained.values() for batch in batches]


class Both(Learner):
    """Trains on two loaders at a time, and remembers what came of each."""

    def __init__(self) -> None:
        super().__init__()
        self.both: dict[str, list[list[int]]] = {"long": [], "short": []}

    def training_step(self, batch: Any, number: int) -> Any:
        for name, (images, _) in batch.items():
            self.both[name].append(images["sample"].tolist())
        return super().training_step(batch["long"], number)


@pytest.mark.parametrize("at", [*range(5, 9), 13, 14, 19, 26])
def test_a_short_loader_that_is_read_several_times_in_an_epoch_goes_on_where_it_was(
    data: Any, tmp_path: Path, at: int
) -> None:
    """Lightning sets the epoch of each loader to its own, which the short one has long left. It has 6 batches, and an epoch 13."""
    parts = {"long": data.select(range(200)), "short": data.select(range(200, 290))}

    def both() -> Any:
        return CombinedLoader({name: make(part) for name, part in parts.items()}, "max_size_cycle")

    undisturbed, begun, resumed = Both(), Both(), Both()
    trainer(max_epochs=3).fit(undisturbed, both())
    saves: Any = ModelCheckpoint(dirpath=tmp_path, filename="at", every_n_train_steps=at, save_top_k=1)
    trainer(max_epochs=3, max_steps=at, enable_checkpointing=True, callbacks=[saves]).fit(begun, both())
    (checkpoint,) = tmp_path.glob("*.ckpt")
    trainer(max_epochs=3).fit(resumed, both(), ckpt_path=checkpoint, weights_only=False)
    for name, whole in undisturbed.both.items():
        assert begun.both[name] + resumed.both[name] == whole, name


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"shuffle": False}])
def test_predictions_are_of_all_samples_though_the_loader_drops_the_last_batch(
    data: Any, options: dict[str, Any]
) -> None:
    found = trainer().predict(Predicts(), make(data, drop_last=True, **options))
    assert sorted(sample for batch in found or [] for sample in batch) == list(range(digits.COUNT))


class Predicts(Learner):
    def predict_step(self, batch: Any, number: int) -> list[int]:
        images, _ = batch
        return images["sample"].tolist()


def test_ddp_shares_each_epoch_between_two_ranks(ranks: Callable[..., list[str]]) -> None:
    told = [json.loads(line) for line in ranks("lightning_program.py", "1")]
    assert told[0]["weights"] == told[1]["weights"]
    for epoch in ("0", "1"):
        shares = [digits.flat(one["trained"][epoch]) for one in told]
        assert len(shares[0]) == len(shares[1]) == digits.COUNT // 2
        assert sorted(shares[0] + shares[1]) == list(range(digits.COUNT))
    assert max(one["gets"] for one in told) == digits.COUNT, "one request for each sample, over both ranks and epochs"
