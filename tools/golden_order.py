#!/usr/bin/env python3
"""Writes tests/golden/keyed_order.json, mixture_order.json and order_digest.json from a second implementation, in plain Python.

`crates/plan/src/order/keyed.rs`, `mixture.rs` and `digest.rs` are tested against these files. Because this implementation shares nothing with the
Rust one but its description, agreement says more than a frozen copy of the program's own output would. It is also the shortest
complete description of the `keyed/1` and `mixture/1` orders for somebody who wants to compute it elsewhere.

    python tools/golden_order.py            # writes the files
    python tools/golden_order.py --check    # fails when they would change
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
WORD = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
SMALL, ROUNDS = 1 << 16, 8


def mix(x: int) -> int:
    """The moremur mixer: a bijection of the 64-bit words."""
    x = (x ^ x >> 27) * 0x3C79AC492BA7B653 & WORD
    x = (x ^ x >> 33) * 0x1C69B3F74AC4AE35 & WORD
    return x ^ x >> 27


def key(*parts: int) -> int:
    """One key from several numbers."""
    result = STEP
    for part in parts:
        result = mix((result + STEP & WORD) ^ mix(part + STEP & WORD))
    return result


def words(key: int) -> Iterator[int]:
    """The generator that counts."""
    while True:
        key = key + STEP & WORD
        yield mix(key)


def below(source: Iterator[int], bound: int) -> int:
    """A number below `bound`, without bias."""
    while True:
        product = next(source) * bound
        if product & WORD >= 2**64 % bound:
            return product >> 64


def shuffle(samples: int, source: Iterator[int]) -> list[int]:
    """Fisher-Yates from the end."""
    order = list(range(samples))
    for at in range(samples - 1, 0, -1):
        other = below(source, at + 1)
        order[at], order[other] = order[other], order[at]
    return order


def network(samples: int, source: Iterator[int]) -> Callable[[int], int]:
    """The Feistel network over left x 2^bits pairs, walking until it lands below `samples`."""
    bits = max(1, (samples - 1).bit_length() // 2)
    left_size = -(-samples >> bits)
    keys = [next(source) for _ in range(ROUNDS)]

    def once(at: int) -> int:
        left, right = at >> bits, at & (1 << bits) - 1
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left = (left + (mix(right ^ first) * left_size >> 64)) % left_size
            right ^= mix(left ^ second) >> 64 - bits
        return left << bits | right

    def walk(at: int) -> int:
        at = once(at)
        while at >= samples:
            at = once(at)
        return at

    return walk


def keyed(seed: int, epoch: int, samples: int) -> Callable[[int], int]:
    """Position to sample."""
    source = words(key(seed, epoch, samples))
    return shuffle(samples, source).__getitem__ if samples <= SMALL else network(samples, source)


def turns(weights: list[int]) -> list[int]:
    """Whose turn it is at each position of a period: of the reads whose window has begun, that whose window ends first."""
    total, counts, found = sum(weights), [0] * len(weights), []
    for position in range(total):
        ends = [
            (-(-(count + 1) * total // weight), stream)
            for stream, (count, weight) in enumerate(zip(counts, weights, strict=True))
            if count * total // weight <= position
        ]
        found.append(min(ends)[1])
        counts[found[-1]] += 1
    return found


def mixture(streams: list[tuple[int, int]], seed: int, length: int, epoch: int, positions: list[int]) -> list[int]:
    """The samples at positions of an epoch; streams are (samples, weight)."""
    period = turns([weight for _, weight in streams])
    samples = []
    for position in positions:
        periods, at = divmod(epoch * length + position, len(period))
        stream = period[at]
        size, weight = streams[stream]
        number, place = divmod(periods * weight + period[:at].count(stream), size)
        first = sum(size for size, _ in streams[:stream])
        source = words(key(key(seed, stream), number & WORD, size))
        order = shuffle(size, source).__getitem__ if size <= SMALL else network(size, source)
        samples.append(first + order(place))
    return samples


def siphash_2_4_128(data: bytes, k0: int, k1: int) -> bytes:
    """SipHash-2-4 with 128 bits."""
    marks = (0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573)
    v = [mark ^ part for mark, part in zip(marks, (k0, k1, k0, k1), strict=True)]

    def half(a: int, b: int, turn: int) -> None:
        v[a] = v[a] + v[b] & WORD
        v[b] = (v[b] << turn | v[b] >> 64 - turn) & WORD ^ v[a]

    def rounds(count: int) -> None:
        for _ in range(count):
            half(0, 1, 13)
            half(2, 3, 16)
            v[0] = (v[0] << 32 | v[0] >> 32) & WORD
            half(2, 1, 17)
            half(0, 3, 21)
            v[2] = (v[2] << 32 | v[2] >> 32) & WORD

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    result = b""
    for place, mark in ((2, 0xEE), (1, 0xDD)):
        v[place] ^= mark
        rounds(4)
        result += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return result


def digest(domain: str, *fields: int | str | bytes) -> str:
    """Numbers as eight bytes, strings behind their length, under the project's key."""

    def field(value: int | str | bytes) -> bytes:
        if isinstance(value, int):
            return value.to_bytes(8, "little")
        raw = value.encode() if isinstance(value, str) else value
        return len(raw).to_bytes(8, "little") + raw

    secret = int.from_bytes(b"foreload", "little")
    return siphash_2_4_128(b"".join(map(field, (domain, *fields))), secret, secret).hex()


def keyed_cases() -> list[dict[str, Any]]:
    """Samples at some positions, for tables and networks of many sizes."""
    sizes = [1, 2, 3, 10, 1000, SMALL, SMALL + 1, 100_003, 1 << 20, 1_281_167, 1_000_000_007, 1 << 40, (1 << 48) - 1]
    cases = []
    for number, samples in enumerate(sizes):
        for seed, epoch in [(0, 0), (0, 1), (2**64 - 1, 89), (number, 2**32 - 1)]:
            candidates = {0, 1, 2, samples // 3, samples // 2, samples - 2, samples - 1}
            positions = sorted(at for at in candidates if 0 <= at < samples)
            order = keyed(seed, epoch, samples)
            found = [order(position) for position in positions]
            cases.append({"samples": samples, "seed": seed, "epoch": epoch, "positions": positions, "found": found})
    return cases


def mixture_cases() -> list[dict[str, Any]]:
    """Samples at some positions, for several streams."""
    mixtures = [
        [(1, 1)],
        [(10, 2), (4, 1)],
        [(5, 7), (50, 2), (1, 1)],
        [(7, 1), (7, 1), (7, 1), (7, 1)],
        [(1000, 313), (30, 89), (90_000, 551), (2, 1)],
        [(1 << 40, 999), (1_281_167, 1)],
    ]
    cases = []
    for number, streams in enumerate(mixtures):
        for seed, epoch, length in [(0, 0, 100), (number, 1, 37), (2**64 - 1, 2**32 - 1, 1 << 47)]:
            positions = sorted({*range(30), 31, 35, 36, length // 3, length - 1})
            found = mixture(streams, seed, length, epoch, positions)
            spread = {"streams": [{"samples": size, "weight": weight} for size, weight in streams]}
            cases.append(
                {"seed": seed, "epoch": epoch, "length": length, **spread, "positions": positions, "found": found}
            )
    return cases


def digest_cases() -> list[dict[str, Any]]:
    """Digests of one spec of each kind and of each tail."""
    data = bytes(range(16))
    kinds: list[tuple[Any, list[Any]]] = [
        ("keyed", ["keyed/1"]),
        ("torch_distributed", ["torch-distributed/1"]),
        ({"torch_random": {"draws": "loader_each_epoch"}}, ["torch-random-loader/1"]),
        ({"torch_random": {"draws": "loader_once"}}, ["torch-random-loader-once/1"]),
        ({"torch_random": {"draws": "sampler_only"}}, ["torch-random-sampler/1"]),
        ("sequential", ["sequential/1"]),
        ({"contiguous": {"parts": 4}}, ["contiguous/1", 4]),
        ({"strided": {"stride": 7}}, ["strided/1", 7]),
        ({"explicit": {"list": [2, 0, 1]}}, ["explicit/1", 3, 2, 0, 1]),
        ({"supplied": {"length": 9}}, ["supplied/1", 9]),
        (
            {
                "mixture": {
                    "streams": [{"samples": 700, "weight": 2}, {"samples": 300, "weight": 5}],
                    "shuffle": True,
                    "length": 80,
                }
            },
            ["mixture/1", 2, 700, 300, 2, 2, 5, 1, 80],
        ),
    ]
    tails: list[tuple[Any, list[Any]]] = [
        ("drop", ["drop", 0]),
        ({"pad": {"multiple": 8}}, ["pad", 8]),
        ({"pad_then_drop": {"multiple": 4}}, ["pad-then-drop", 4]),
        ({"trim": {"multiple": 2}}, ["trim", 2]),
        ("uneven", ["uneven", 0]),
    ]
    pairs = [(kind, tails[0]) for kind in kinds] + [(kinds[0], tail) for tail in tails[1:]]
    return [
        {
            "spec": {
                "dataset": data.hex(),
                "samples": 1000,
                "kind": kind,
                "seed": 42,
                "global_batch": 16,
                "tail": tail,
            },
            "digest": digest("order/1", data, 1000, *kind_fields, 42, 16, *tail_fields),
        }
        for (kind, kind_fields), (tail, tail_fields) in pairs
    ]


def main() -> int:
    """Writes the files, or compares."""
    check, changed = "--check" in sys.argv[1:], 0
    for name, cases in [
        ("keyed_order.json", keyed_cases()),
        ("mixture_order.json", mixture_cases()),
        ("order_digest.json", digest_cases()),
    ]:
        text = json.dumps(cases, separators=(",", ":")).replace("},{", "},\n{") + "\n"
        if check:
            changed += (GOLDEN / name).read_text() != text
        else:
            (GOLDEN / name).write_text(text)
    print("changed" if changed else "unchanged" if check else "written")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
