"""NumpyLoader in a jitted training step of JAX; state by `get_state` and `set_state`, as Grain's iterators have them."""

from __future__ import annotations

from typing import Any

import digits
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foreload as fl


def decode(raw: memoryview, meta: fl.Meta) -> np.ndarray[Any, Any]:
    """The pixels, and behind them the sample's number."""
    return np.append(digits.pixels(raw), np.float32(meta.sample))


@jax.jit
def step(weights: Any, images: Any, labels: Any) -> Any:
    def loss(weights: Any) -> Any:
        scores = images[:, :64] @ weights
        return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(labels)), labels])

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.5 * gradient, value


def make(data: Any, **keywords: Any) -> fl.NumpyLoader:
    return fl.NumpyLoader(
        data, digits.BATCH, shuffle=True, seed=1, drop_last=True, decode=decode, cache=digits.CACHE, **keywords
    )


def train(batches: Any, weights: Any, steps: int | None = None) -> tuple[Any, list[list[int]], list[float]]:
    """Weights, samples by step, losses."""
    trained, losses = [], []
    for images, labels in batches:
        weights, loss = step(weights, jax.device_put(images), jax.device_put(labels))
        trained.append(images[:, 64].astype(int).tolist())
        losses.append(float(loss))
        if len(trained) == steps:
            break
    return weights, trained, losses


ZERO = np.zeros((64, 10), np.float32)
EPOCH = digits.COUNT // digits.BATCH


@pytest.mark.parametrize("threads", [0, 2])
def test_a_jitted_step_learns_from_each_epoch_as_planned(data: Any, threads: int) -> None:
    loader, weights = make(data, threads=threads), jnp.asarray(ZERO)
    first: list[float] = []
    losses: list[float] = []
    for epoch in range(3):
        weights, trained, losses = train(loader, weights)
        first = first or losses
        assert trained == digits.epoch_of(LoaderRun(loader), epoch)
    assert sum(losses) < sum(first) / 2


@pytest.mark.parametrize("at", [7, EPOCH, 26])
def test_a_state_goes_on_at_the_batch_and_with_the_weights(data: Any, at: int) -> None:
    whole = train(iter(make(data, epochs=3, repeat=True)), jnp.asarray(ZERO))
    iterator = iter(make(data, epochs=3, repeat=True))
    weights, begun, losses = train(iterator, jnp.asarray(ZERO), at)
    state = iterator.get_state()
    assert isinstance(state, bytes)
    other = iter(make(data, epochs=3, repeat=True))
    other.set_state(state)
    weights, rest, more = train(other, weights)
    assert begun + rest == whole[1]
    assert losses + more == whole[2]
    assert np.array_equal(weights, whole[0])


def test_processes_are_told_their_shard(data: Any) -> None:
    shares = [make(data, shard=(rank, 2)) for rank in range(2)]
    found = [train(loader, jnp.asarray(ZERO))[1] for loader in shares]
    assert len(found[0]) == len(found[1]) == digits.COUNT // (2 * digits.BATCH)
    assert not set(digits.flat(found[0])) & set(digits.flat(found[1]))
    plain = make(data, shard=(jax.process_index(), jax.process_count()))
    assert len(plain) == EPOCH


class LoaderRun:
    """Where `digits.epoch_of` looks for the plan."""

    def __init__(self, loader: fl.NumpyLoader) -> None:
        self.run = loader._run
