"""A result comes back from bytes as it was, and bytes that aren't one are told."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pickle
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from alike import same
from foreload import errors
from foreload.torch._record import FORMAT, UnknownTypeError, decode, encode

Image = pytest.importorskip("PIL.Image")


class Box(NamedTuple):
    corners: Any
    label: str = ""


@dataclasses.dataclass
class Target:
    boxes: Any
    at: int = 0

    def __post_init__(self) -> None:
        assert self.at >= -1, "made by its constructor"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


def image_of(mode: str, size: tuple[int, int], seed: int) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def laid_out(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The same values in another layout."""
    order = np.random.default_rng(seed).permutation(tensor.dim()).tolist()
    kind = seed % 4
    if kind == 0 or not tensor.dim():
        return tensor
    if kind == 1:
        return tensor.permute(order)
    if kind == 2:
        return tensor[::2]
    return tensor.unsqueeze(-1).expand(*tensor.shape, 3)


def stepped(array: Any, seed: int) -> Any:
    if not array.ndim or seed % 3 == 0:
        return array
    return array[::-2] if seed % 3 == 1 else array.T


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**300), 2**300)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.binary().map(bytearray)
    | st.text(st.characters(categories=["Cs", "L"]), max_size=3)
    | st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.str_("\u00fc"), np.bytes_(b"a\0"), np.str_("")])
    | st.sampled_from([np.datetime64("2020-01-02", "D"), np.complex64(1j), np.float64("nan")])
)
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ARRAYS = st.builds(
    stepped,
    npst.arrays(
        st.sampled_from("?bBhHiIqQefdFD")
        | st.sampled_from([">f4", "<M8[ns]", "m8[s]", "U3", "S2", [("a", "<f4"), ("b", ">i2", (2,))]]).map(np.dtype),
        SHAPES,
    ),
    st.integers(0, 99),
)
TENSORS = st.builds(
    lambda dtype, shape, seed: laid_out(
        torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype), seed
    ),
    st.sampled_from(
        [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
    ),
    SHAPES,
    st.integers(0, 99),
)
IMAGES = st.builds(
    image_of,
    st.sampled_from(["1", "L", "P", "PA", "RGB", "RGBA", "CMYK", "I", "F", "YCbCr", "LA", "HSV"]),
    st.tuples(*[st.integers(1, 9)] * 2),
    st.integers(0, 9),
)
KEYS = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
VALUES = st.recursive(
    SCALARS | ARRAYS | TENSORS | IMAGES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(Box, inner, st.text(max_size=3))
        | st.builds(Target, inner)
        | st.builds(Frozen, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(VALUES)
def test_a_result_comes_back_as_it_was(value: Any) -> None:
    data = encode(value)
    made = decode(data)
    assert same(value, made)
    assert encode(made) == data


@settings(max_examples=80, deadline=None)
@given(VALUES, st.data())
def test_altered_bytes_are_an_error_or_another_result_and_nothing_else(value: Any, draw: Any) -> None:
    data = encode(value)
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(errors.CorruptError, match="kept result"):
        decode(data[:cut])
    with pytest.raises(errors.CorruptError, match="behind its end"):
        decode(data + b"\0")
    flipped = bytearray(data)
    flipped[cut] ^= 1 << draw.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), bytes([FORMAT]) + draw.draw(st.binary(max_size=200))):
        with contextlib.suppress(errors.CorruptError, UnknownTypeError):
            decode(damaged)


def long(count: int) -> bytes:
    return struct.pack("<Q", count)


@pytest.mark.parametrize(
    "crafted",
    [
        b"L" + long(1 << 40),
        b"M" + long(1 << 62),
        b"B" + long((1 << 64) - 1),
        b"L" + long(1) + b"L" * 100_000,
        (b"L" + long(1)) * 10_000 + b"N",
        b"AS" + long(2) + b"|O" + long(1) + long(0) + long(0),
        b"AS" + long(3) + b"<f8" + long(2) + long(1 << 40) * 2 + long(0),
        b"AS" + long(3) + b"<f8" + long(1 << 59),
        b"AS" + long(3) + b"<f8" + long(100) + long(1) * 100 + long(8) + bytes(8),
        b"XS" + long(7) + b"float32" + long(1) + long(1 << 40) + long(1) + long(0) + long(4) + bytes(4),
        b"XS"
        + long(7)
        + b"float32"
        + long(2)
        + long(1)
        + long(2)
        + long(2)
        + long(1)
        + long(1 << 40)
        + long(8)
        + bytes(8),
        b"XS" + long(8) + b"__name__" + long(0) + long(0) + long(0),
        b"P" + encode(("RGB", (1 << 20, 1 << 20), None, {}))[1:] + b"B" + long(3) + b"abc",
        b"P" + encode(("RGB", (0, 1 << 40), None, {}))[1:] + b"B" + long(0),
        b"P" + encode(("P", (1, 1), ("../x", b"abc"), {}))[1:] + b"B" + long(1) + b"a",
        b"G" + b"N",
        b"O" + b"N",
        b"M" + long(1) + b"L" + long(0) + b"N",
        b"",
    ],
)
def test_what_somebody_made_up_is_refused_without_taking_memory(crafted: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(errors.CorruptError, match="kept result"):
            decode(bytes([FORMAT]) + crafted)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_another_format_is_refused() -> None:
    with pytest.raises(errors.CorruptError, match="another format"):
        decode(bytes([FORMAT + 1]) + b"N")


@pytest.mark.parametrize(
    "name",
    ["os:system", "os.path:join", "this:s", "builtins:dict", "subprocess:Popen", "", ":", "a:b:c", f"{__name__}:Loose"],
)
def test_no_class_is_imported_and_none_made_but_tuples_and_dataclasses(name: str) -> None:
    own = f"{Target.__module__}:Target".encode()
    data = encode(Target(1))
    with pytest.raises(UnknownTypeError):
        decode(data.replace(long(len(own)) + own, long(len(name)) + name.encode()))
    assert "this" not in sys.modules


def test_no_constructor_is_called() -> None:
    data = encode(Target(1, -1))
    assert decode(data.replace(b"I" + long(1) + b"\xff", b"I" + long(1) + b"\x80")).at == -128


def test_a_class_is_one_that_its_module_names_with_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Box(1))
    other = collections.namedtuple("Box", "corners text")  # noqa: PYI024
    other.__module__, other.__qualname__ = Box.__module__, Box.__qualname__
    with pytest.raises(errors.InvalidError, match=r"result\[1\].*Box: put the class where"):
        encode([1, other(1, 2)])
    monkeypatch.setattr(sys.modules[__name__], "Box", other)
    with pytest.raises(UnknownTypeError, match="Box"):
        decode(data)
    monkeypatch.delattr(sys.modules[__name__], "Box")
    with pytest.raises(UnknownTypeError, match="Box"):
        decode(data)


class Odd(torch.Tensor):
    pass


class Loose:
    pass


class Counter(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1: [0, Loose()]}, r"result\[1\]\[1\]: a .*Loose"),
        (Target(Box({3})), r"result.boxes.corners: a builtins.set"),
        (Counter(), "Counter"),
        (torch.rand(2).as_subclass(Odd), r"as_subclass\(torch.Tensor\)"),
        (torch.rand(2, requires_grad=True), "requires_grad=True"),
        (torch.rand(2).to_sparse(), "sparse"),
        (torch.rand(2, device="meta"), "meta"),
        (torch.rand(2, dtype=torch.complex64).conj(), "resolve_conj"),
        (np.array([Loose()]), "not its values alone"),
        (np.zeros(2, np.longdouble), "not its values alone"),
        (np.zeros(2, np.dtype([("a", "i1"), ("b", "i8")], align=True)), "not its values alone"),
        (np.zeros(2).view(np.recarray), r"numpy.array\(value\)"),
        (None, None),
    ],
)
def test_what_has_no_form_is_refused_with_its_place_and_a_remedy(value: Any, told: str | None) -> None:
    if told is None:
        nested: Any = []
        for _ in range(100):
            nested = [nested]
        value, told = nested, "more than 64 containers"
    with pytest.raises(errors.InvalidError, match=told):
        encode(value)


def test_attributes_beside_the_fields_are_refused() -> None:
    target = Target(1)
    target.more = 1  # type: ignore[attr-defined]
    with pytest.raises(errors.InvalidError, match="beside its fields: more"):
        encode(target)


def test_an_image_that_is_read_later_is_refused_and_its_copy_kept(tmp_path: Path) -> None:
    image_of("RGB", (4, 4), 1).save(tmp_path / "a.png", dpi=(72, 72))
    image = Image.open(tmp_path / "a.png")
    with pytest.raises(errors.InvalidError, match=r"image.copy\(\)"):
        encode(image)
    image = image.copy()
    made = decode(encode(image))
    assert made == image
    assert made.info == image.info
    image.info["odd"] = Loose()
    with pytest.raises(errors.InvalidError, match=r"result\[0\].info\['odd'\]: a .*Loose"):
        encode([image])


@pytest.mark.parametrize("mode", ["P", "PA"])
@pytest.mark.parametrize("palette", ["RGB", "RGBA"])
def test_a_palette_comes_back(mode: str, palette: str) -> None:
    image = Image.new(mode, (3, 2))
    image.putpalette(bytes(range(8 * len(palette))), palette)
    image.putpixel((1, 1), 3)
    image.info["transparency"] = 3
    made = decode(encode(image))
    assert (made.mode, made.palette.mode, made.getpalette(palette)) == (mode, palette, image.getpalette(palette))
    assert same(image, made)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(4, 6).t()[::2],
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)[:, :2],
        torch.rand(5, 1).expand(5, 3),
        torch.rand(3, 1, 2).permute(2, 1, 0),
        torch.rand(4)[1:3],
        torch.rand(()).expand(2, 2),
        torch.empty(0, 3).t(),
        torch.rand(3, 4)[:, ::2].to(torch.complex64).real,
    ],
)
def test_a_tensor_is_laid_out_as_its_clone(tensor: torch.Tensor) -> None:
    made = decode(encode(tensor))
    assert torch.equal(made, tensor)
    assert made.stride() == tensor.clone().stride()
    assert made.untyped_storage().nbytes() == made.numel() * made.element_size()


@pytest.mark.parametrize(
    "turned", [np.ones((3, 4)), np.ones((3, 4)).T, np.ones((6, 4))[::2].T, np.ones((3, 4, 5)).transpose(1, 0, 2)]
)
def test_an_array_is_laid_out_as_a_worker_would_send_it(turned: Any) -> None:
    made = decode(encode(turned))
    assert made.strides == pickle.loads(pickle.dumps(turned)).strides
    assert made.flags.owndata


def test_what_comes_back_is_memory_of_its_own() -> None:
    data = encode([torch.zeros(3), np.zeros(3)])
    one, other = decode(data), decode(data)
    one[0] += 1
    one[1] += 1
    assert math.isclose(other[0].sum().item() + other[1].sum(), 0)
    assert one[0].data_ptr() % 16 == 0
