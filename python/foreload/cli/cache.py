"""`foreload cache`: what is kept on this machine's disk, and removing it."""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output

if TYPE_CHECKING:
    from rich.console import Console

cache = typer.Typer(no_args_is_help=True, help="What is kept on this machine's disk: indexes, disk tiers and results.")
Disk = Annotated[
    list[Path] | None,
    typer.Option(
        "--disk", metavar="DIR", help="A disk tier's directory too, as in Cache(disk='DIR:SIZE'); repeatable."
    ),
]
#: The names of segment files (`crates/engine/src/disk/segments.rs`).
_SEGMENT = re.compile(r"[0-9a-f]{8}\.seg")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


@cache.command("ls")
def show(disk: Disk = None, as_json: options.AsJson = False) -> None:
    """Lists indexes, disk tiers and kept results with their sizes."""
    value = contents(disk)
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


@cache.command()
def clear(disk: Disk = None, yes: Yes = False, as_json: options.AsJson = False) -> None:
    """Removes indexes, and the disk tiers and kept results of the directories that are named; they are made again when needed."""
    from foreload._node import results as _results
    from foreload.cli.agent import jobs_of, running, wait_for_end
    from foreload.errors import InvalidError

    found = contents(disk, read=False)
    freed = found["bytes"]
    agent = running()
    if agent is not None and (busy := sum(job["clients"] > 0 for job in jobs_of(agent))):
        raise InvalidError(
            f"the agent (process {agent.pid}) has {busy} jobs; end them first, or `foreload agent stop --force`"
        )
    if freed and not yes:
        if as_json:
            raise InvalidError(
                f"{output.human_bytes(freed)} would be removed, and with --json nobody is asked: add --yes"
            )
        typer.confirm(f"Remove {output.human_bytes(freed)}?", abort=True)
    for entry in (*found["indexes"], *found["listings"], *found["lists"]):
        Path(entry["path"]).unlink(missing_ok=True)
    if found["tiers"] and agent is not None:
        # One that lingers has the segments open and would go on writing into them.
        pid = agent.pid
        agent.call('{"call": "retire"}')
        del agent
        if not wait_for_end(pid, 10.0):
            raise InvalidError(f"the agent (process {pid}) doesn't end; `foreload agent stop --force` ends it")
    for entry in found["tiers"]:
        for file in segment_files(Path(entry["path"])):
            file.unlink(missing_ok=True)
    try:
        in_use = [str(path) for entry in found["tiers"] for path in _results.clear(Path(entry["path"]))]
    except OSError as error:
        raise InvalidError(f"kept results can't be removed: {error}") from error
    freed -= sum(entry["bytes"] for entry in found["results"] if entry["path"] in in_use)
    value = {
        "freed_bytes": freed,
        "indexes": len(found["indexes"]),
        "tiers": len(found["tiers"]),
        "results": len(found["results"]) - len(in_use),
        "in_use": in_use,
    }
    indexes = output.counted(len(found["indexes"]), "index file")
    tiers = output.counted(len(found["tiers"]), "disk tier")
    results = output.counted(len(found["results"]) - len(in_use), "data set")
    text = f"{output.human_bytes(freed)} freed: {indexes}, {tiers}, results of {results}"
    text += "".join(f"\n{path} stays: a process has it open" for path in in_use)
    output.emit(value, lambda console: console.print(text), as_json=as_json)


def contents(disk: list[Path] | None, *, read: bool = True) -> dict[str, Any]:
    """What is kept: in the cache directory, and in the directories of the tiers of `FORELOAD_DISK` and of those named.

    Args:
        disk: More tiers' directories.
        read: Whether to say what indexes and results are of, which takes an agent.

    Returns:
        Paths and sizes, in JSON's types.
    """
    from foreload._node import agent as _agent
    from foreload._node import results as _results
    from foreload._settings.cache import Cache

    directory = Path(_agent.cache_directory())
    indexes = [_index(path, read=read) for path in sorted((directory / "indexes").glob("*.flx"))]
    named = [Path(place) for place, _ in Cache().disks()] + [path.expanduser().absolute() for path in disk or []]
    tiers = [_tier(path) for path in dict.fromkeys(named)]
    results = [
        _sized(path) | (_results.describe(path) if read else {})
        for tier in tiers
        for path in _results.files_in(Path(tier["path"]))
    ]
    listings = [_sized(path) for path in sorted((directory / "indexes").glob("*.listing"))]
    lists = [_sized(path) for path in sorted((directory / "wrapped").glob("*.jsonl"))]
    total = sum(entry["bytes"] for entry in (*indexes, *listings, *lists, *tiers, *results))
    free = shutil.disk_usage(next(part for part in (directory, *directory.parents) if part.exists())).free
    return {
        "cache_dir": str(directory),
        "bytes": total,
        "free_bytes": free,
        "indexes": indexes,
        "listings": listings,
        "lists": lists,
        "tiers": tiers,
        "results": results,
    }


def _sized(path: Path) -> dict[str, Any]:
    return {"path": str(path), "bytes": path.stat().st_size}


def _index(path: Path, *, read: bool) -> dict[str, Any]:
    from foreload.errors import ForeloadError

    entry: dict[str, Any] = _sized(path) | {"used": path.stat().st_mtime}
    try:
        return entry | _read(path) if read else entry
    except (ForeloadError, OSError, ValueError) as error:
        return entry | {"damaged": str(error)}


def _read(path: Path) -> dict[str, Any]:
    from foreload._node import agent as _agent
    from foreload._node.source import Source

    # A saved index opens without a listing, whatever the URL.
    index = (
        Source(_agent.cache_directory(), {"url": str(path), "storage_options": {}, "index": str(path)}).opened().index
    )
    return {"url": index.root, "format": index.format, "samples": len(index), "digest": index.digest}


def segment_files(directory: Path) -> list[Path]:
    """The files of a disk tier; whatever else lies in its directory is somebody's own."""
    found = (path for path in directory.glob("*.seg") if _SEGMENT.fullmatch(path.name))
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def _tier(directory: Path) -> dict[str, Any]:
    files = segment_files(directory) if directory.is_dir() else []
    return {"path": str(directory), "bytes": sum(path.stat().st_size for path in files), "segments": len(files)}


def _draw(console: "Console", value: dict[str, Any]) -> None:
    free = output.human_bytes(value["free_bytes"])
    console.print(f"{value['cache_dir']}: {output.human_bytes(value['bytes'])} kept, {free} free")
    if value["indexes"]:
        rows = (
            (
                entry.get("url", f"{Path(entry['path']).name}: damaged"),
                entry.get("format", ""),
                output.human_count(entry["samples"]) if "samples" in entry else "",
                output.human_bytes(entry["bytes"]),
                entry.get("digest", "")[:12],
            )
            for entry in value["indexes"]
        )
        output.grid(console, ("data set", "format", ">samples", ">index", "digest"), rows)
    if value["listings"]:
        size = output.human_bytes(sum(entry["bytes"] for entry in value["listings"]))
        console.print(f"unfinished listings: {len(value['listings'])}, {size}; the next try goes on from them")
    if value["lists"]:
        size = output.human_bytes(sum(entry["bytes"] for entry in value["lists"]))
        console.print(f"lists of files that wrap was given: {len(value['lists'])}, {size}")
    if value["tiers"]:
        tiers = ((t["path"], output.human_count(t["segments"]), output.human_bytes(t["bytes"])) for t in value["tiers"])
        output.grid(console, ("disk tier", ">segments", ">size"), tiers)
    if value["results"]:
        results = (
            (
                entry.get("name", f"{Path(entry['path']).name}: damaged"),
                output.human_count(entry["samples"]) if "samples" in entry else "",
                output.human_count(entry["kept"]) if "kept" in entry else "",
                output.human_bytes(entry["bytes"]),
            )
            for entry in value["results"]
        )
        output.grid(console, ("results of", ">samples", ">kept", ">size"), results)
