"""The library that is loaded into an unmodified program to fetch ahead of what it maps: where it is, whether it fits, and what it is told.

`crates/preload` is the library; the two agree on the variables below and on a number, the ABI. Nothing here runs a program: `foreload run` does.
"""

from __future__ import annotations

import ctypes
import glob
import itertools
import mmap
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from foreload.errors import InvalidError, NotFoundError

#: What the library answers that knows these variables.
ABI = 3
#: How it can look; the second and the third stop the program at checkpoints, as paper 003 does.
DETECTORS = ("poll", "mprotect", "guard", "off")
TRAPS = ("mprotect", "guard")
#: Bytes between two checkpoints, and fetched at a time; the library's own defaults.
DISTANCE, SIZE = 8 << 20, 50 << 20
LIBRARY = Path(__file__).parent.parent / "_preload.so"
#: Its statistics: a line of so many bytes for each process.
LINE_BYTES = 512
#: What it has room for.
_MOST_PATTERNS = 4096
#: Files of one pattern that are looked at for links.
_MOST_LINKS = 1000
#: Where a pattern means a whole tree it is looked for links for so long.
_MOST_LOOKING_S = 0.3
_PT_INTERP = 3
_MADV_GUARD_INSTALL = 102


def environment(
    patterns: Iterable[str],
    *,
    detector: str = "poll",
    window: int | None = None,
    distance: int | None = None,
    size: int | None = None,
    stats: Path | None = None,
    given: Mapping[str, str] = os.environ,
    library: Path = LIBRARY,
) -> dict[str, str]:
    """The variables of a program that is to be helped.

    Args:
        patterns: Which files, by their paths.
        detector: One of `DETECTORS`.
        window: Bytes that a stream is read ahead at most; None: the library's default. For `poll`.
        distance: Bytes between two checkpoints; None: the library's default. For `mprotect` and `guard`, as `size` is.
        size: Bytes that are fetched at a time; 0: nothing.
        stats: A file for its statistics.
        given: The variables that the program has anyway.
        library: The library.

    Raises:
        InvalidError: A pattern is empty or no path, the detector isn't there or doesn't work here, a size isn't for it or doesn't fit, or the library is another version's.
        NotFoundError: There is no library.
    """
    check(library)
    check_detector(detector, window, distance, size)
    told = named(patterns)
    if len(os.fsencode(told)) > _MOST_PATTERNS:
        raise InvalidError(
            f"--mmap: patterns and the files they link to take more than {_MOST_PATTERNS} bytes; give fewer, or the directory that the files are in"
        )
    before = [
        each for each in given.get("LD_PRELOAD", "").replace(" ", ":").split(":") if each and each != str(library)
    ]
    found = {
        **given,
        "LD_PRELOAD": ":".join([str(library), *before]),
        "FORELOAD_MMAP": told,
        "FORELOAD_MMAP_DETECTOR": detector,
        # A program of the address sanitizer refuses to run behind any library that was loaded before its own; ours calls on into that.
        "ASAN_OPTIONS": ":".join(filter(None, ["verify_asan_link_order=0", given.get("ASAN_OPTIONS")])),
    }
    for name, value in (
        ("FORELOAD_MMAP_WINDOW", window),
        ("FORELOAD_MMAP_DISTANCE", distance),
        ("FORELOAD_MMAP_SIZE", size),
        ("FORELOAD_MMAP_STATS", stats and stats.absolute()),
    ):
        found.pop(name, None)
        if value is not None:
            found[name] = str(value)
    return found


def check_detector(detector: str, window: int | None, distance: int | None, size: int | None) -> None:
    """Refuses a detector that isn't there or doesn't work here, and sizes that it has no use for or that don't fit.

    Raises:
        InvalidError: As said.
    """
    if detector not in DETECTORS:
        raise InvalidError(f"--detector={detector} is none; there are {', '.join(DETECTORS)}")
    if detector not in TRAPS:
        if distance is not None or size is not None:
            raise InvalidError(
                f"--distance and --size are of the detectors {' and '.join(TRAPS)}, and not of {detector}"
            )
        return
    if window is not None:
        raise InvalidError(
            f"--window is of the detector poll; --size is what {detector} fetches at a time (0: nothing)"
        )
    distance, size = DISTANCE if distance is None else distance, SIZE if size is None else size
    if distance < 1 or distance % mmap.PAGESIZE:
        raise InvalidError(f"--distance={distance}: must be a multiple of a page, {mmap.PAGESIZE} bytes")
    if size and distance > size // 4:
        raise InvalidError(
            f"--distance={distance}: must be no more than a quarter of --size={size}, or no checkpoint may lie in its last quarter, where the next bytes are asked for"
        )
    if detector == "guard" and not has_guard_pages():
        raise InvalidError(
            f"--detector=guard: this kernel ({os.uname().release}) has no guard pages in mapped files, which Linux 6.15 has; --detector=poll works on any"
        )


def has_guard_pages() -> bool:
    """Whether a page of a mapped file can be made a guard page here."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, length = ctypes.c_void_p, ctypes.c_size_t(mmap.PAGESIZE)
    with LIBRARY.open("rb") as file:
        at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), ctypes.c_long(0))
    if at in (None, ctypes.c_void_p(-1).value):
        return False
    failed = libc.madvise(ctypes.c_void_p(at), length, _MADV_GUARD_INSTALL)
    libc.munmap(ctypes.c_void_p(at), length)
    return bool(failed == 0)


def named(patterns: Iterable[str]) -> str:
    """Patterns as `window::glob` reads them, parted by colons, with what they mean where links lead elsewhere.

    Args:
        patterns: Which files, by their paths.

    Raises:
        InvalidError: There are none.
    """
    found = ":".join(dict.fromkeys(itertools.chain.from_iterable(map(_real, patterns))))
    if not found:
        raise InvalidError("--mmap: say which files are mapped, such as --mmap '*.safetensors'")
    return found


def check(library: Path = LIBRARY) -> None:
    """Refuses a library that isn't there, isn't this version's, or can't be named to the loader.

    Raises:
        InvalidError: It is another version's, or its path has what parts paths.
        NotFoundError: It isn't there.
    """
    if not library.exists():
        raise NotFoundError(f"{library} isn't there: this installation has no preload library")
    if set(str(library)) & {":", " "}:
        raise InvalidError(f"{library}: the loader takes no path with a colon or a blank; install foreload elsewhere")
    try:
        number = ctypes.CDLL(str(library)).foreload_preload_abi_version()
    except (OSError, AttributeError) as error:
        raise InvalidError(f"{library} is no preload library: {error}") from None
    if number != ABI:
        raise InvalidError(f"{library} is another version's (ABI {number}, and not {ABI}): install foreload again")


def check_program(program: Path) -> None:
    """Refuses a program that the library can't be loaded into, where its file says so.

    Raises:
        InvalidError: It is linked statically, or against another C library or architecture than the library.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or len(head) < 64:
            # A script: its interpreter isn't looked for.
            return
        with LIBRARY.open("rb") as ours:
            if head[4:6] != (own := ours.read(64))[4:6] or head[18:20] != own[18:20]:
                raise InvalidError(
                    f"{program} is for another architecture than foreload, so nothing can be loaded into it"
                )
        (at,), (each, count) = struct.unpack_from("=Q", head, 32), struct.unpack_from("=HH", head, 54)
        file.seek(at)
        table = file.read(each * count)
        parts = [struct.unpack_from("=IIQQQQ", table, n * each) for n in range(len(table) // max(each, 1))]
        loaders = []
        for kind, _, offset, _, _, length in parts:
            if kind == _PT_INTERP:
                file.seek(offset)
                loaders.append(file.read(min(length, 4096)).rstrip(b"\0"))
    if not loaders:
        raise InvalidError(
            f"{program} is linked statically, so nothing can be loaded into it; foreload.mmap.prefetch fetches whole files besides"
        )
    if b"musl" in loaders[0]:
        raise InvalidError(
            f"{program} is linked against musl, and the preload library against glibc, so it can't be loaded"
        )


def _real(pattern: str) -> Iterator[str]:
    """The pattern, and what it means where links lead elsewhere: the kernel tells of a mapping the file's own path."""
    pattern = pattern.strip()
    if not pattern:
        return
    place = os.path.expanduser(pattern)  # noqa: PTH111 (a pattern isn't a path)
    if place.startswith(("./", "../")):
        place = os.path.abspath(place)  # noqa: PTH100
    if not place.startswith("/"):
        yield _told(place)
    # The part without wildcards may be a link, and so may each file.
    fixed = os.path.dirname(place[: next((at for at, letter in enumerate(place) if letter in "*?["), len(place))])  # noqa: PTH120
    rest = place[len(fixed) :].lstrip("/")
    # A link that leads to itself stays what it is.
    yield _told(f"{os.path.realpath(fixed)}/{rest}".replace("//", "/"))
    found = _below(fixed, place) if "**" in place else glob.iglob(place)  # noqa: PTH207
    links = (path for path in found if os.path.islink(path) and not os.path.isdir(path))  # noqa: PTH114, PTH112
    for path in itertools.islice(links, _MOST_LINKS):
        yield _told(glob.escape(os.path.realpath(path)))


def _below(directory: str, pattern: str) -> Iterator[str]:
    """The files below a directory that a pattern with `**` means, as far as they are found soon; directories that are links aren't entered."""
    # Many stars one behind the other mean what two do, and take a regular expression ages.
    pattern = re.sub(r"\*{3,}", "**", pattern)
    parts = (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]"))
    words, at = [], 0
    while at < len(pattern):
        word, meant = next((part for part in parts if pattern.startswith(part[0], at)), (pattern[at], None))
        end = pattern.find("]", at + 2)
        if word == "[" and end > 0:
            word = pattern[at : end + 1]
            negated, inside = ("^", word[2:-1]) if word.startswith("[!") else ("", word[1:-1])
            meant = f"[{negated}{_SPECIAL.sub(_escaped, inside)}]"
        words.append(re.escape(word) if meant is None else meant)
        at += len(word)
    is_meant = re.compile("".join(words), re.DOTALL).fullmatch
    until = time.monotonic() + _MOST_LOOKING_S
    for place, _, names in os.walk(directory or "."):
        yield from filter(is_meant, (os.path.join(place, name) for name in names))  # noqa: PTH118
        if time.monotonic() > until:
            return


#: What means something else within brackets in a regular expression.
_SPECIAL = re.compile(r"[][\\&~|^]")


def _escaped(letter: re.Match[str]) -> str:
    return f"\\{letter[0]}"


def _told(pattern: str) -> str:
    # Colons part patterns.
    return pattern.replace(":", "?")
