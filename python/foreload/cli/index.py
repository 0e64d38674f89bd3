"""`foreload index`: lists a data set once and keeps what was found.

The agent lists, and keeps the index in its cache directory, where `foreload.open` finds it. `--out` writes a copy, for machines that
must not list.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.opening import open_dataset, reopen

if TYPE_CHECKING:
    from rich.console import Console

    from foreload import Dataset

Out = Annotated[str | None, typer.Option("--out", metavar="FILE|URL", help="Also write the index there.")]
Update = Annotated[
    bool, typer.Option("--update", help="List again, and say what changed; what didn't keeps its number.")
]
Checksum = Annotated[
    bool,
    typer.Option(
        "--checksum",
        help="Read every sample once and keep a checksum of each, verified whenever it is fetched. With --update, read them again.",
    ),
]
Extensions = Annotated[
    list[str] | None, typer.Option("--extension", help="Only files that end so are samples, such as jpg; repeatable.")
]


def index(
    url: options.Url,
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    out: Out = None,
    update: Update = False,
    checksum: Checksum = False,
    extension: Extensions = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Lists a data set once and keeps its index, so that every later start takes seconds."""
    from foreload.errors import NotFoundError

    if out is not None:
        _check_out(out)
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    arguments: dict[str, Any] = {"format": format, "extensions": extension or []}
    begun = time.perf_counter()
    dataset = open_dataset(url, given, stale=update, **arguments)
    value: dict[str, Any] = {}
    if update or checksum:
        before = dataset
        dataset = reopen(dataset, update=update, checksum=checksum)
        value |= {"changes": changes(before, dataset, checksum=checksum)} if update else {}
    if not len(dataset):
        raise NotFoundError(f"{url}: no samples there (check the prefix and --extension)")
    value = summary(dataset) | {"seconds": round(time.perf_counter() - begun, 3)} | value
    value["saved"] = save(dataset, out, given) if out is not None else None
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


def summary(dataset: "Dataset") -> dict[str, Any]:
    """What an index says, in JSON's types."""
    opened = dataset.source.opened()
    return {
        "url": dataset.url,
        "format": dataset.format,
        "samples": len(dataset),
        "objects": opened.index.objects,
        "bytes": dataset.nbytes,
        "classes": dataset.classes,
        "digest": dataset.digest,
        "notes": [note for note, _ in opened.index.notes()],
        "index_bytes": opened.index.nbytes,
        "origin": dataset.origin,
        "cache_dir": dataset.source.cache_dir,
    }


def changes(before: "Dataset", after: "Dataset", *, checksum: bool) -> dict[str, int]:
    """How many samples came, went and changed: by key, place in the object, ETag and, if checksums were made anew and both have one, checksum."""

    def places(dataset: "Dataset") -> dict[tuple[tuple[str, int], ...], tuple[Any, int | None]]:
        index = dataset.source.opened().index
        found = ((index.ranges(sample), index.crc32c(sample)) for sample in range(len(dataset)))
        return {
            tuple((key, first) for key, first, *_ in ranges): (
                [(length, etag) for _, _, length, _, etag in ranges],
                crc,
            )
            for ranges, crc in found
        }

    if before.digest == after.digest and not checksum:
        return {"added": 0, "removed": 0, "changed": 0}
    old, new = places(before), places(after)
    both = [(old[place], new[place]) for place in old.keys() & new.keys()]
    changed = sum(a != b or (crc != other and None not in (crc, other)) for (a, crc), (b, other) in both)
    return {"added": len(new.keys() - old.keys()), "removed": len(old.keys() - new.keys()), "changed": changed}


def save(dataset: "Dataset", out: str, given: dict[str, str]) -> str:
    """Writes the index file, to a path or an `s3://` URL.

    Args:
        dataset: Whose index.
        out: Where to.
        given: Storage options, for a URL.

    Returns:
        Where it is.
    """
    content = dataset.source.opened().index.to_bytes()
    path = _file(out)
    if path is None:
        _upload(out, content, given)
        return out
    # A link stays one: what it names is replaced.
    real = path.resolve()
    new = real.with_name(f"{real.name}.new")
    new.write_bytes(content)
    new.replace(real)
    return str(path)


def _file(out: str) -> Path | None:
    """The path of a file; None: it is a URL."""
    if "://" in out and not out.startswith("file://"):
        return None
    return Path(out.removeprefix("file://")).expanduser().absolute()


def _object(url: str) -> tuple[str, str]:
    """Bucket and key of a URL that can be written.

    Raises:
        InvalidError: It is none.
    """
    from foreload.errors import InvalidError

    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in {"s3", "s3a"} or not bucket or not key:
        raise InvalidError(f"--out: can write to files and s3://bucket/key, not to {url}; write a file and upload it")
    return bucket, key


def _check_out(out: str) -> None:
    """Refuses what the index can't be written to, before it is made."""
    path = _file(out)
    if path is None:
        _object(out)
    else:
        options.check_writable(path, "--out")


def _upload(url: str, content: bytes, given: dict[str, str]) -> None:
    """The engine only reads, so writing takes the cloud's own client."""
    from foreload.errors import DeniedError

    bucket, key = _object(url)
    import botocore.exceptions

    from foreload.cli.boto import client

    try:
        client(url, given).put_object(Bucket=bucket, Key=key, Body=content)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise DeniedError(f"--out: writing {url}: {error}") from error


def _draw(console: "Console", value: dict[str, Any]) -> None:
    classes = value["classes"]
    shown = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    took = output.human_seconds(value["seconds"])
    known = {"listed": f"listed in {took}", "updated": f"brought up to date in {took}"}
    origin = known.get(value["origin"], "saved earlier (--update lists again)")
    rows = [
        ("format", value["format"]),
        ("samples", output.human_count(value["samples"])),
        ("objects", output.human_count(value["objects"])),
        ("bytes", output.human_bytes(value["bytes"])),
        ("classes", f"{len(classes)}: {shown}" if classes else "none"),
        ("digest", value["digest"]),
        ("index", f"{output.human_bytes(value['index_bytes'])}, {origin}"),
        ("kept in", value["cache_dir"]),
    ]
    rows += [("note", note) for note in value["notes"]]
    if "changes" in value:
        found = value["changes"]
        rows.append(("changes", f"{found['added']} added, {found['removed']} removed, {found['changed']} changed"))
    if value["saved"]:
        rows.append(("written to", value["saved"]))
    output.facts(console, value["url"], rows)
