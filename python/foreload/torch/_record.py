"""A result of a data set as bytes, and back: the codec of what `wrap(..., deterministic=True)` keeps.

A result is a tree: tensors, NumPy arrays and scalars, Pillow images, bytes, text, numbers, None, in tuples, lists, dicts, named tuples and dataclasses.
Equal results become equal bytes, which is how two of them are compared. Nothing in the bytes can run code: a class is named, and looked for in the modules
that are imported already; its constructor isn't called. Every length is compared with what is left before memory is taken. The format is in
docs/reference/result-format.md. It is a codec of our own, for msgpack has no word for most of these types and safetensors none for a tree.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from foreload.errors import CorruptError, InvalidError

# Writers and readers of one form each, by type and by tag.
# ruff: noqa: ARG002, SLF001

#: The first byte.
FORMAT = 1
#: Containers within containers.
_DEEPEST = 64
#: Bits of a pixel of Pillow's modes; a row is whole bytes.
_PIXEL_BITS = {
    "1": 1,
    **dict.fromkeys(("L", "P"), 8),
    **dict.fromkeys(("LA", "PA", "La", "I;16", "I;16L", "I;16B", "I;16N"), 16),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 32),
}
_DTYPES = {str(each)[6:]: each for each in vars(torch).values() if isinstance(each, torch.dtype)}
#: An image without pixels still has a place for each row.
_LONGEST_NOTHING = 1 << 16
_Q = struct.Struct("<Q")
_D = struct.Struct("<d")


class UnknownTypeError(LookupError):
    """A record names a class that this process doesn't have, or has with other fields; the message is the name."""


class _UnsupportedError(Exception):
    """Something has no form here; `path` leads to it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


def find_type(name: str) -> type | None:
    """The named tuple or dataclass of a name; None: there is none in the modules that this process has imported."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # What a module makes when it is asked for a name is no class of its.
        found = vars(found).get(part) if isinstance(found, (type, types.ModuleType)) else None
    return found if isinstance(found, type) else None


def type_name(kind: type) -> str:
    """What a record calls a class; in a spawned worker the main module has another name."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}:{kind.__qualname__}"


def _fields(kind: type) -> tuple[str, ...] | None:
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)
        is_named = isinstance(fields, tuple) and all(isinstance(each, str) for each in fields)
        return tuple(fields) if is_named and fields is not None else None
    if not dataclasses.is_dataclass(kind):
        return None
    try:
        object.__new__(kind)
    except TypeError:
        # Abstract, or what it derives from has contents of its own.
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


# ---- to bytes ----------------------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """A result as bytes.

    Args:
        value: The result.

    Returns:
        The bytes, a copy of all it holds.

    Raises:
        InvalidError: Something in it has no form here; the message says where, and what helps.
    """
    parts = [bytes((FORMAT,))]
    try:
        _Writer(parts).write(value, 0)
    except _UnsupportedError as error:
        raise InvalidError(
            f"result{''.join(reversed(error.path))}: {error}. What can be kept: tensors on the CPU without a gradient, NumPy arrays and scalars, Pillow images, "
            "bytes, str, numbers, bool, None, and tuples, lists, dicts, named tuples and dataclasses of them"
        ) from None
    return b"".join(parts)


class _Writer:
    """Appends a tree to a list of bytes."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def write(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            raise _UnsupportedError(f"more than {_DEEPEST} containers lie in each other")
        kind = type(value)
        write = _WRITERS.get(kind)
        if write is not None:
            write(self, value, depth)
        elif isinstance(value, np.generic):
            self._scalar(value)
        elif kind is _image_class():
            self._image(value, depth)
        elif isinstance(value, tuple) or dataclasses.is_dataclass(kind):
            self._of_class(value, depth)
        else:
            raise _UnsupportedError(f"a {kind.__module__}.{kind.__qualname__}{_remedy(value)}")

    def _put(self, tag: bytes, data: bytes) -> None:
        self._parts += (tag, _Q.pack(len(data)), data)

    def _none(self, value: Any, depth: int) -> None:
        self._parts.append(b"N")

    def _bool(self, value: bool, depth: int) -> None:
        self._parts.append(b"T" if value else b"F")

    def _int(self, value: int, depth: int) -> None:
        self._put(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _float(self, value: float, depth: int) -> None:
        self._parts += (b"D", _D.pack(value))

    def _complex(self, value: complex, depth: int) -> None:
        self._parts += (b"C", _D.pack(value.real), _D.pack(value.imag))

    def _text(self, value: str, depth: int) -> None:
        self._put(b"S", value.encode("utf-8", "surrogatepass"))

    def _bytes(self, value: bytes, depth: int) -> None:
        self._put(b"B", value)

    def _bytearray(self, value: bytearray, depth: int) -> None:
        self._put(b"Y", bytes(value))

    def _items(self, tag: bytes, values: Any, depth: int, names: Any = None) -> None:
        self._parts += (tag, _Q.pack(len(values)))
        for at, each in enumerate(values):
            try:
                self.write(each, depth + 1)
            except _UnsupportedError as error:
                error.path.append(f"[{at}]" if names is None else f".{names[at]}")
                raise

    def _tuple(self, value: tuple[Any, ...], depth: int) -> None:
        self._items(b"U", value, depth)

    def _list(self, value: list[Any], depth: int) -> None:
        self._items(b"L", value, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> None:
        self._parts += (b"M", _Q.pack(len(value)))
        for key, each in value.items():
            try:
                self.write(key, depth + 1)
                self.write(each, depth + 1)
            except _UnsupportedError as error:
                error.path.append(f"[{key!r:.60}]")
                raise

    def _of_class(self, value: Any, depth: int) -> None:
        kind = type(value)
        fields = _fields(kind)
        if fields is None:
            raise _UnsupportedError(f"a {kind.__module__}.{kind.__qualname__}, which is no named tuple or dataclass")
        if find_type(type_name(kind)) is not kind:
            raise _UnsupportedError(f"a {kind.__module__}.{kind.__qualname__}: put the class where its module names it")
        is_tuple = isinstance(value, tuple)
        beside = set(getattr(value, "__dict__", ())).difference(() if is_tuple else fields)
        if beside:
            raise _UnsupportedError(
                f"a {kind.__qualname__} with attributes beside its fields: {', '.join(sorted(beside))}"
            )
        try:
            values = tuple(value) if is_tuple else [getattr(value, name) for name in fields]
        except AttributeError as error:
            raise _UnsupportedError(f"a {kind.__qualname__} without one of its fields: {error}") from None
        self._put(b"O", type_name(kind).encode())
        self._items(b"U", fields, depth)
        self._items(b"U", values, depth, fields)

    def _scalar(self, value: np.generic) -> None:
        if isinstance(value, np.str_):
            self._put(b"s", str(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, np.bytes_):
            self._put(b"b", bytes(value))
        else:
            self._parts.append(b"G")
            self._array(np.asarray(value), 0)

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> None:
        dtype = value.dtype
        form = _form_of(dtype)
        # As it would come from a worker.
        is_fortran = value.flags.fnc
        self._parts.append(b"a" if is_fortran else b"A")
        self.write(form, 0)
        self._numbers(value.shape)
        self._parts += (_Q.pack(value.nbytes), value.tobytes("F" if is_fortran else "C"))

    def _tensor(self, value: torch.Tensor, depth: int) -> None:
        name = str(value.dtype)[6:]
        if value.device.type != "cpu" or value.layout != torch.strided or value.requires_grad or value.is_quantized:
            raise _UnsupportedError(
                f"a tensor on {value.device}, {value.layout}, {name}, requires_grad={value.requires_grad}"
            )
        if value.is_conj() or value.is_neg():
            raise _UnsupportedError("a tensor that is conjugated or negated lazily: resolve_conj() and resolve_neg()")
        if not _is_dense(value.shape, value.stride()):
            value = value.clone(memory_format=torch.preserve_format)
        # An axis of one element may have any step.
        flat = value.as_strided((value.numel(),), (1,))
        try:
            data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        except RuntimeError as error:
            raise _UnsupportedError(f"a tensor of {name}: {error}") from None
        self._parts.append(b"X")
        self._text(name, 0)
        self._numbers(value.shape)
        self._numbers(value.stride())
        self._parts += (_Q.pack(len(data)), data)

    def _numbers(self, numbers: Sequence[int]) -> None:
        self._parts.append(struct.pack(f"<{1 + len(numbers)}Q", len(numbers), *numbers))

    def _image(self, value: Any, depth: int) -> None:
        if value.mode not in _PIXEL_BITS:
            raise _UnsupportedError(f"a Pillow image of mode {value.mode}")
        if not all(value.size) and max(value.size) > _LONGEST_NOTHING:
            raise _UnsupportedError(f"a Pillow image of {value.size}")
        value.load()
        palette = None if value.palette is None else (value.palette.mode, bytes(value.palette.palette))
        self._parts.append(b"P")
        try:
            self.write((value.mode, tuple(value.size), palette, value.info), depth)
        except _UnsupportedError as error:
            error.path[-1:] = [".info"]
            raise
        self._put(b"B", value.tobytes())


_WRITERS: dict[type, Callable[[_Writer, Any, int], None]] = {
    type(None): _Writer._none,
    bool: _Writer._bool,
    int: _Writer._int,
    float: _Writer._float,
    complex: _Writer._complex,
    str: _Writer._text,
    bytes: _Writer._bytes,
    bytearray: _Writer._bytearray,
    tuple: _Writer._tuple,
    list: _Writer._list,
    dict: _Writer._dict,
    np.ndarray: _Writer._array,
    torch.Tensor: _Writer._tensor,
}


def _image_class() -> Any:
    """Pillow's class, where somebody has imported that."""
    return getattr(sys.modules.get("PIL.Image"), "Image", object)


def _remedy(value: Any) -> str:
    image = _image_class()
    if image is not object and isinstance(value, image):
        return ", a file that is read later: return image.copy() or image.convert(...)"
    if isinstance(value, torch.Tensor):
        return ": return value.as_subclass(torch.Tensor)"
    if isinstance(value, np.ndarray):
        return ": return numpy.array(value)"
    return ""


def _form_of(dtype: np.dtype[Any]) -> Any:
    """A NumPy type as text, or as a list of named fields."""
    form = np.lib.format.dtype_to_descr(dtype) if dtype.names else dtype.str  # type: ignore[no-untyped-call]
    if dtype.hasobject or not _is_solid(dtype):
        raise _UnsupportedError(f"a NumPy array of {dtype}, whose bytes are not its values alone")
    if _dtype_of(form) != dtype:
        raise _UnsupportedError(f"a NumPy array of {dtype}")
    return form


def _is_solid(dtype: np.dtype[Any]) -> bool:
    """Whether no byte of it is padding, whose value is left to chance."""
    if dtype.subdtype is not None:
        return _is_solid(dtype.subdtype[0])
    if dtype.names is None:
        return dtype.char not in "gGO"
    inner = [dtype[name] for name in dtype.names]
    return sum(each.itemsize for each in inner) == dtype.itemsize and all(_is_solid(each) for each in inner)


def _dtype_of(form: Any) -> np.dtype[Any]:
    return np.dtype(form) if isinstance(form, str) else np.lib.format.descr_to_dtype(form)  # type: ignore[no-untyped-call]


def _is_dense(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether the elements fill a stretch of memory, each once; steps in elements."""
    if min(steps, default=0) < 0:
        return False
    if math.prod(shape) == 0:
        return True
    step = 1
    for each, length in sorted((step, length) for step, length in zip(steps, shape, strict=True) if length > 1):
        if each != step:
            return False
        step *= length
    return True


# ---- and back ----------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> Any:
    """What `encode` was given; all of it is memory of its own, which may be written to.

    Args:
        data: The bytes.

    Raises:
        CorruptError: These are no bytes of `encode`'s, or not all of them.
        UnknownTypeError: They name a class that isn't known.
    """
    reader = _Reader(memoryview(data))
    try:
        return reader.whole()
    except (CorruptError, UnknownTypeError):
        raise
    except Exception as error:
        # Containers without end, or of libraries, which are asked for what the bytes say.
        raise CorruptError(f"a kept result is damaged: {error}") from error


class _Reader:
    """Takes a tree from bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def whole(self) -> Any:
        """The value that the bytes are."""
        if self.take(1) != bytes((FORMAT,)):
            raise CorruptError("a kept result is of another format")
        value = self.read()
        if self.left:
            raise CorruptError(f"a kept result is damaged: {self.left} bytes behind its end")
        return value

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._at

    def take(self, length: int) -> memoryview:
        """The next bytes."""
        if length > self.left:
            raise CorruptError(f"a kept result is damaged: {length} bytes of {self.left}")
        self._at += length
        return self._data[self._at - length : self._at]

    def _count(self) -> int:
        return int(_Q.unpack(self.take(8))[0])

    def _counted(self) -> memoryview:
        return self.take(self._count())

    def read(self) -> Any:
        """The next value."""
        tag = bytes(self.take(1))
        read = _READERS.get(tag)
        if read is None:
            raise CorruptError(f"a kept result is damaged: {tag!r} is no type")
        return read(self)

    def _int(self) -> int:
        return int.from_bytes(self._counted(), "little", signed=True)

    def _float(self) -> float:
        return float(_D.unpack(self.take(8))[0])

    def _complex(self) -> complex:
        return complex(self._float(), self._float())

    def _text(self) -> str:
        return str(self._counted(), "utf-8", "surrogatepass")

    def _list(self) -> list[Any]:
        return [self.read() for _ in range(self._count())]

    def _dict(self) -> dict[Any, Any]:
        return {self.read(): self.read() for _ in range(self._count())}

    def _of_class(self) -> Any:
        name = self._text()
        fields, values = self.read(), self.read()
        if type(fields) is not tuple or type(values) is not tuple or len(fields) != len(values):
            raise CorruptError(f"a kept result is damaged: the fields of {name}")
        kind = find_type(name)
        if kind is None or _fields(kind) != fields:
            raise UnknownTypeError(name)
        if issubclass(kind, tuple):
            return tuple.__new__(kind, values)
        made = object.__new__(kind)
        for field, value in zip(fields, values, strict=True):
            object.__setattr__(made, field, value)
        return made

    def _numbers(self) -> list[int]:
        count = self._count()
        return list(struct.unpack(f"<{count}Q", self.take(8 * count)))

    def _array(self, layout: Literal["C", "F"] = "C") -> np.ndarray[Any, Any]:
        form = self.read()
        dtype = _dtype_of(form)
        if isinstance(form, str) and dtype.str != form:
            raise CorruptError(f"a kept result is damaged: {form!r:.60} is no type")
        shape = self._numbers()
        data = self._counted()
        if dtype.hasobject or dtype.subdtype is not None or math.prod(shape) * dtype.itemsize != len(data):
            raise CorruptError(f"a kept result is damaged: an array of {dtype}, {shape} of {len(data)} bytes")
        made = np.empty(shape, dtype, layout)
        if data:
            made.reshape(-1, order=layout).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        return made

    def _tensor(self) -> torch.Tensor:
        dtype = _DTYPES[self.read()]
        shape, steps = self._numbers(), self._numbers()
        data = self._counted()
        if math.prod(shape) * dtype.itemsize != len(data) or not _is_dense(shape, steps):
            raise CorruptError(f"a kept result is damaged: a tensor of {dtype}, {shape} of {len(data)} bytes")
        made = torch.empty_strided(shape, steps, dtype=dtype, device="cpu")
        if data:
            flat = made.as_strided((made.numel(),), (1,)).view(torch.uint8).numpy()
            flat[:] = np.frombuffer(data, np.uint8)
        return made

    def _scalar(self) -> Any:
        value = self.read()
        if type(value) is not np.ndarray or value.shape:
            raise CorruptError("a kept result is damaged: no scalar")
        return value[()]

    def _image(self) -> Any:
        from PIL import Image

        mode, (width, height), palette, info = self.read()
        data = self.read()
        if type(data) is not bytes or len(data) != height * ((width * _PIXEL_BITS[mode] + 7) // 8):
            raise CorruptError(f"a kept result is damaged: an image of {width} x {height}, {mode}")
        if not data and max(width, height) > _LONGEST_NOTHING:
            raise CorruptError(f"a kept result is damaged: an image of {width} x {height}")
        image = Image.frombytes(mode, (width, height), data) if data else Image.new(mode, (width, height))
        if type(info) is not dict or (palette is not None and type(palette[1]) is not bytes):
            raise CorruptError("a kept result is damaged: an image")
        image.info = info
        if palette is not None:
            image.putpalette(palette[1], palette[0])
        return image


_READERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"N": lambda _reader: None,
    b"T": lambda _reader: True,
    b"F": lambda _reader: False,
    b"I": _Reader._int,
    b"D": _Reader._float,
    b"C": _Reader._complex,
    b"S": _Reader._text,
    b"s": lambda reader: np.str_(reader._text()),
    b"B": lambda reader: bytes(reader._counted()),
    b"b": lambda reader: np.bytes_(bytes(reader._counted())),
    b"Y": lambda reader: bytearray(reader._counted()),
    b"L": _Reader._list,
    b"U": lambda reader: tuple(reader._list()),
    b"M": _Reader._dict,
    b"O": _Reader._of_class,
    b"A": _Reader._array,
    b"a": lambda reader: reader._array("F"),
    b"G": _Reader._scalar,
    b"X": _Reader._tensor,
    b"P": _Reader._image,
}
