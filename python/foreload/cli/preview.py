"""`foreload preview`: some samples of a data set, as they will be read."""

import io
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.opening import open_dataset

if TYPE_CHECKING:
    from rich.console import Console

    from foreload import Dataset

Count = Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many samples.")]
First = Annotated[int, typer.Option("--first", min=0, help="Number of the first one.")]

#: How files begin, by what they are.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\x93NUMPY", "NumPy array"),
    (b"PAR1", "Parquet"),
    (b"OggS", "Ogg"),
    (b"fLaC", "FLAC"),
    (b"ID3", "MP3"),
    (b"%PDF", "PDF"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"PK\3\4", "ZIP"),
    (b"\x80\x04", "pickle"),
    (b"\x80\x05", "pickle"),
)


def preview(
    url: options.Url,
    count: Count = 8,
    first: First = 0,
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    index: options.SavedIndex = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Reads some samples and shows key, size, label and what their bytes are."""
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    dataset = open_dataset(url, given, format=format, index=index)
    if first >= len(dataset):
        raise typer.BadParameter(f"the data set has {len(dataset)} samples", param_hint="--first")
    rows = [describe(dataset, sample) for sample in range(first, min(first + count, len(dataset)))]
    value = {"url": dataset.url, "samples": len(dataset), "rows": rows}
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


def describe(dataset: "Dataset", sample: int) -> dict[str, Any]:
    """Reads a sample and says what it is."""
    item = dataset[sample]
    label = item.label
    classes = dataset.classes
    # A sample that is one object has one part without a name.
    parts = {name: data for name, data in item.parts.items() if name}
    size = next(filter(None, map(image_size, parts.values() or [item.bytes])), None)
    return {
        "sample": sample,
        "key": item.key,
        "bytes": len(item),
        "label": label,
        "class": classes[label] if label is not None and 0 <= label < len(classes) else None,
        "type": ", ".join(f"{name}: {content_type(data)}" for name, data in parts.items()) or content_type(item.bytes),
        "image": list(size) if size else None,
    }


def content_type(data: bytes) -> str:
    r"""What bytes are, by how they begin.

    Example:
        >>> content_type(b"\x89PNG\r\n\x1a\n..."), content_type(b"7\n"), content_type(bytes(4))
        ('PNG', 'text', 'binary')
    """
    if data[:4] == b"RIFF" and len(data) >= 12:
        return {b"WEBP": "WebP", b"WAVE": "WAV", b"AVI ": "AVI"}.get(data[8:12], "RIFF")
    if data[4:8] == b"ftyp":
        return "AVIF" if data[8:12] == b"avif" else "MP4"
    if found := next((name for magic, name in _MAGIC if data.startswith(magic)), None):
        return found
    if not data:
        return "empty"
    try:
        # A character may be cut at the end of the excerpt.
        text = data[:512].decode("utf-8", errors="strict" if len(data) <= 512 else "ignore")
    except UnicodeDecodeError:
        return "binary"
    if any(ord(character) < 32 and character not in "\t\n\r" for character in text):
        return "binary"
    return "JSON" if text.lstrip()[:1] in {"{", "["} else "text"


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of an image; None without Pillow, or when it isn't one."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _draw(console: "Console", value: dict[str, Any]) -> None:
    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        label = "" if row["label"] is None else f"{row['label']}"
        size = " x ".join(map(str, row["image"])) if row["image"] else ""
        return (
            str(row["sample"]), row["key"], output.human_bytes(row["bytes"]), label, row["class"] or "", row["type"], size
        )  # fmt: skip

    title = f"{value['url']}: {output.human_count(value['samples'])} samples"
    columns = (">sample", "key", ">size", ">label", "class", "type", "image")
    output.grid(console, columns, map(cells, value["rows"]), title)
