"""The verb: runs the checks, prints the report, and fails when one of them did."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreload.cli import options, output
from foreload.cli.doctor.finding import Finding, guarded
from foreload.cli.failure import Code, leave

if TYPE_CHECKING:
    from rich.console import Console

Target = Annotated[
    str | None, typer.Argument(metavar="[URL|FILE]", help="Look at this data set's store, or at this file, too.")
]
_SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "cyan"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


def doctor(
    target: Target = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Checks what on this machine would hinder us, with remedies.

    Credentials, clock, shared memory, limits, worker start method, cache directory, the agent. Exits with 1 if a check fails.
    """
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    found: list[Finding] = []
    target_console = None if as_json else output.console()
    for finding in findings(target, given):
        found.append(finding)
        if target_console is not None:
            _show(target_console, finding)
    failed = sum(finding.level == "fail" for finding in found)
    warned = sum(finding.level == "warn" for finding in found)
    value = {"ok": not failed, "checks": [dataclasses.asdict(finding) for finding in found]}
    output.emit(value, lambda console: console.print(_verdict(failed, warned)), as_json=as_json)
    if failed:
        leave(Code.FAILED)


def findings(target: str | None, given: dict[str, str]) -> Iterator[Finding]:
    """Runs all checks, one after the other.

    Args:
        target: A data set's URL, a file, or nothing.
        given: Storage options of the command line.

    Yields:
        What they find, as they find it.
    """
    from foreload import _core
    from foreload._node import agent as _agent
    from foreload._settings import environment as _environment
    from foreload.cli.doctor import directories, file, machine, store

    cache_dir = _agent.cache_directory()
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("versions", machine.versions),
        ("processors", machine.processors),
        ("memory", machine.memory),
        ("shared memory", machine.shared_memory),
        ("memfd and sealing", machine.sealed_memory),
        ("open files", machine.open_files),
        ("start method", machine.start_method),
        ("mounting", machine.mounts),
        ("cache directory", lambda: directories.cache_directory(Path(cache_dir))),
        ("socket directory", lambda: directories.socket_directory(_core.runtime_dir())),
        ("agent", lambda: directories.agent(cache_dir)),
    ]
    if target is not None and store.scheme_of(target) == "file":
        checks.append(("file", lambda: file.look(Path(target.removeprefix("file://")))))
    elif target is not None:
        merged = _environment.storage_options(target, given)
        checks += [
            ("credentials", lambda: store.credentials(target, given)),
            ("proxy", store.proxy),
            ("clock", lambda: store.clock(target, merged)),
        ]
    if target is not None and (store.scheme_of(target) != "file" or Path(target.removeprefix("file://")).is_dir()):
        checks.append(("data set", lambda: store.data_set(target, given)))
    for name, check in checks:
        yield from guarded(name, check)


def _show(console: "Console", finding: Finding) -> None:
    from rich.text import Text

    sign, style = _SIGNS[finding.level]
    console.print(Text.assemble((sign, style), "  ", (f"{finding.name:<18}", "bold"), finding.detail))
    if finding.remedy:
        console.print(Text(f"      {'':<18}-> {finding.remedy}", style="dim"))


def _verdict(failed: int, warned: int) -> str:
    if failed:
        return f"[bold red]{failed} failed[/], {warned} warnings"
    return f"[bold green]nothing fails[/], {warned} warnings"
