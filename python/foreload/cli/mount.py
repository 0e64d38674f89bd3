"""`foreload mount` and `foreload unmount`: a bucket as a directory; `foreload serve`: the same for S3 clients."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from foreload.cli import options, output

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIRECTORY", help="Where; it must exist. /dev/fd/N: a descriptor of /dev/fuse that is mounted already."
    ),
]
Foreground = Annotated[
    bool, typer.Option("--foreground", "-f", help="Serve in this process until it is unmounted, or Ctrl-C.")
]
Log = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What the program says. Default: mount.log in the cache directory."),
]
Chunk = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE|adaptive",
        help="What one request is for. Default: adaptive, 4 or 8 MiB.",
        rich_help_panel="Reading",
    ),
]
Connections = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Requests in flight. Default: as many as the store is worth.", rich_help_panel="Reading"
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="paper: chunks of 52 MB, 20 connections (paper 004).", rich_help_panel="Reading"),
]
Ram = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory for chunks. Default: 256MB.", rich_help_panel="Reading")
]
Disk = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIRECTORY:SIZE",
        help="Keep what was read there, too; repeatable, fastest first.",
        rich_help_panel="Reading",
    ),
]
Copies = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY:SIZE",
        help="Copies of whole files on a local disk, which the kernel reads by itself (root, Linux 6.9).",
        rich_help_panel="Reading",
    ),
]
Ahead = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="What may be asked for ahead of all open files together. Default: half of --ram; 0: nothing.",
        rich_help_panel="Reading",
    ),
]
Plan = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Files that will be read, a path below DIRECTORY on each line, in that order: they are fetched ahead of their turn.",
        rich_help_panel="Reading",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="A read fails when a request, repetitions included, takes longer. Default: 30.",
        callback=options.number(0.1, 86_400),
        rich_help_panel="Reading",
    ),
]
Ttl = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How long what is known of a name is believed. Default: 60.",
        callback=options.number(0, 1e9),
        rich_help_panel="Names",
    ),
]
Entries = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Names that are kept in mind. Default: 100,000.", rich_help_panel="Names"),
]
Uid = Annotated[
    int | None,
    typer.Option(metavar="N", help="Whom files belong to. Default: you.", rich_help_panel="Names"),
]
Gid = Annotated[int | None, typer.Option(metavar="N", help="The same for the group.", rich_help_panel="Names")]
FileMode = Annotated[
    str | None,
    typer.Option(metavar="OCTAL", help="Permission bits of files. Default: 444, or 644.", rich_help_panel="Names"),
]
DirMode = Annotated[
    str | None,
    typer.Option(
        metavar="OCTAL", help="Permission bits of directories. Default: 555, or 755.", rich_help_panel="Names"
    ),
]
AllowWrite = Annotated[
    bool,
    typer.Option(
        "--allow-write",
        help="Files can be written, deleted and renamed: each becomes an object when it is closed.",
        rich_help_panel="Writing",
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="What of a file goes up in one request; up to 8 at once, and twice as much from 2,500 parts on. Default: 16MiB.",
        rich_help_panel="Writing",
    ),
]
AllowOther = Annotated[
    bool, typer.Option("--allow-other", help="Other users may look at it, too.", rich_help_panel="Names")
]


def mount(
    url: options.Url,
    directory: Directory,
    foreground: Foreground = False,
    log: Log = None,
    chunk: Chunk = None,
    connections: Connections = None,
    preset: Preset = None,
    ram: Ram = None,
    disk: Disk = None,
    copies: Copies = None,
    ahead: Ahead = None,
    plan: Plan = None,
    timeout: Timeout = None,
    ttl: Ttl = None,
    entries: Entries = None,
    uid: Uid = None,
    gid: Gid = None,
    file_mode: FileMode = None,
    dir_mode: DirMode = None,
    allow_other: AllowOther = False,
    allow_write: AllowWrite = False,
    part: Part = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Shows a bucket as a directory, to be read by any program, and with --allow-write to be written. `foreload unmount` ends it.

    Options of s3fs are taken as -o, where there is the same here: parallel_count, multipart_size, max_stat_cache_size, stat_cache_expire and others.
    """
    from foreload._mount import options as _options
    from foreload._mount import program
    from foreload._node import agent as _agent
    from foreload.mount import hint

    store = options.storage_options(endpoint_url, profile, anonymous, _options.words(option))
    named = {
        "chunk": chunk,
        "connections": connections,
        "ram": ram,
        "disk": disk or None,
        "copies": copies,
        "ahead": ahead,
        "timeout_s": timeout,
        "ttl_s": ttl,
        "entries": entries,
        "uid": uid,
        "gid": gid,
        "file_mode": _octal(file_mode, "--file-mode"),
        "dir_mode": _octal(dir_mode, "--dir-mode"),
        "allow_other": allow_other or None,
        "allow_write": allow_write or None,
        "part": part,
    }
    settings = _settings(url, store, preset, named)
    target, descriptor = _options.directory(directory), _options.descriptor(directory)
    descriptors = () if descriptor is None else (descriptor,)

    def tell() -> None:
        if plan is not None:
            root = Path(target)
            hint(root / path for path in plan.read_text().splitlines() if path)

    if descriptor is not None and plan is not None:
        raise typer.BadParameter("it is told where the directory is seen: by foreload.mount.hint", param_hint="--plan")
    if foreground:
        raise typer.Exit(program.serve(target, settings, descriptors, say=lambda _: tell()))
    place = log or Path(_agent.cache_directory()) / "mount.log"
    pid = program.start(target, settings, place, descriptors)
    try:
        tell()
    except BaseException:
        program.unmount(target)
        raise
    value = {"url": settings["url"], "directory": target, "pid": pid, "log": str(place)}
    output.emit(
        value, lambda console: console.print(f"{settings['url']} is at {target} (process {pid})"), as_json=as_json
    )


Listen = Annotated[
    str,
    typer.Option(metavar="ADDRESS:PORT", help="Where, on this machine's loopback; port 0: a free one."),
]
Background = Annotated[
    bool, typer.Option("--background", help="Have a process of its own serve, and say which; `kill` ends it.")
]


def serve(
    url: options.Url,
    listen: Listen = "127.0.0.1:9090",
    background: Background = False,
    log: Log = None,
    chunk: Chunk = None,
    connections: Connections = None,
    preset: Preset = None,
    ram: Ram = None,
    disk: Disk = None,
    ahead: Ahead = None,
    timeout: Timeout = None,
    ttl: Ttl = None,
    entries: Entries = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Serves a bucket to S3 clients on this machine, to be read: what they fetch comes by way of the node's agent, its memory and its disks.

    They need its address (AWS_ENDPOINT_URL), and nothing else is changed: the bucket has its own name, and a directory its last one. Signatures aren't looked at.
    """
    from foreload._mount import options as _options
    from foreload._mount import program
    from foreload._node import agent as _agent

    store = options.storage_options(endpoint_url, profile, anonymous, _options.words(option))
    named = {
        "chunk": chunk,
        "connections": connections,
        "ram": ram,
        "disk": disk or None,
        "ahead": ahead,
        "timeout_s": timeout,
        "ttl_s": ttl,
        "entries": entries,
    }
    settings = _settings(url, store, preset, named)
    target = _options.address(listen)

    def say(at: str, **more: object) -> None:
        value = {"url": settings["url"], "endpoint": at, **more}
        text = f"{settings['url']} is at {at}: AWS_ENDPOINT_URL={at}"
        # Who waits for it reads it through a pipe.
        output.emit(value, lambda console: console.print(text, soft_wrap=True), as_json=as_json)
        sys.stdout.flush()

    if not background:
        raise typer.Exit(program.serve(target, settings, say=say))
    place = log or Path(_agent.cache_directory()) / "serve.log"
    pid, at = program.begin(target, settings, place)
    say(at, pid=pid, log=str(place))


def unmount(directory: Directory, as_json: options.AsJson = False) -> None:
    """Ends a mount, also one whose program has ended."""
    from foreload._mount import program

    place = os.path.realpath(Path(directory).expanduser())
    # Who stands in it would keep it busy.
    os.chdir("/")
    program.unmount(place)
    output.emit({"directory": directory}, lambda console: console.print(f"{directory} is unmounted"), as_json=as_json)


def _settings(url: str, store: dict[str, str], preset: str | None, named: dict[str, Any]) -> dict[str, Any]:
    """What the program reads: a preset's options, those of `-o`, and those that have names, of which the later ones win."""
    from foreload._mount import options as _options

    given = _options.given(store)
    fields: dict[str, Any] = {**(_options.preset(preset) if preset else {}), **given.fields}
    fields.update({name: value for name, value in named.items() if value is not None})
    return _options.Options(**fields).settings(url, given.store)


def _octal(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    try:
        number = int(text, 8)
    except ValueError:
        number = -1
    if not 0 <= number <= 0o777:
        raise typer.BadParameter(f"{text!r}: give three octal digits, such as 644", param_hint=what)
    return number
