#!/usr/bin/env bash
# Makes the one virtual environment of the project: `tools/setup.sh dev [bench|integrations]`; `make docs` makes a small one of its own.
#
# It holds dev and at most one of the others, which disagree about some versions; changing over moves those few packages.
# Each argument names a lock in requirements/. What was installed is remembered in the environment by a hash of the lock and
# the interpreter, so a second call returns at once, an interrupted one is taken up again, and another interpreter starts
# afresh. What the machine lacks is named all at once, with the command that installs it on Debian. Called by every target
# of the Makefile that needs Python; callers on one checkout wait for each other.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}

say() { printf 'setup: %s\n' "$*" >&2; }

# Python: the one that was asked for, else the first that is new enough and can make environments.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}
interpreter=
for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
    if usable "$candidate"; then
        interpreter=$candidate
        break
    fi
done

missing=() packages=()
if [ -z "$interpreter" ]; then
    missing+=("Python >= 3.11 with venv")
    packages+=(python3 python3-venv)
fi
for tool in cc make strip; do
    command -v "$tool" >/dev/null && continue
    missing+=("$tool")
    case $tool in cc) packages+=(gcc libc6-dev) ;; make) packages+=(make) ;; strip) packages+=(binutils) ;; esac
done
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
have=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
needs_rust=
if [ -z "$have" ] || [ "$(printf '%s\n%s\n' "$rust" "$have" | sort -V | head -n1)" != "$rust" ]; then
    needs_rust=1
    missing+=("Rust >= $rust (found: ${have:-none})")
fi
if [ ${#missing[@]} -gt 0 ]; then
    say "this machine lacks:"
    printf 'setup:   - %s\n' "${missing[@]}" >&2
    [ ${#packages[@]} -eq 0 ] || say "on Debian: apt-get install ${packages[*]}"
    [ -z "$needs_rust" ] || say "Rust: apt-get install rustup && rustup default stable (Debian 13), or the installer of rustup.rs"
    exit 1
fi

exec 9>"$VENV.lock"
flock 9

if [ -e "$VENV" ] && [ "$("$VENV/bin/python" -V 2>/dev/null)" != "$("$interpreter" -V)" ]; then
    say "$VENV belongs to another Python; making it anew"
    rm -rf "$VENV"
fi
if [ ! -e "$VENV/bin/python" ]; then
    say "making $VENV with $("$interpreter" -V)"
    "$interpreter" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --upgrade pip
fi

for name in "$@"; do
    lock=requirements/$name.lock
    stamp=$VENV/.foreload-$name-$(sha256sum "$lock" | cut -c1-16)
    [ ! -e "$stamp" ] || continue
    # torch for CUDA and its libraries take 6 GB unpacked, and pip unpacks beside its download.
    free=$(df --output=avail -k "$VENV" | tail -n1)
    if [ "$name" = dev ] && [ ! -d "$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch" ] &&
        [ "$free" -lt $((10 << 20)) ]; then
        say "$((free >> 20)) GiB free under $VENV; $lock needs 10 GiB (torch with its CUDA libraries)"
        exit 1
    fi
    say "installing $lock$([ "$name" = dev ] && echo ' (the first time: about 2 minutes and 6 GB, most of it torch)')"
    if [ "$name" = dev ]; then
        rm -f "$VENV"/.foreload-{dev,bench,integrations}-*
    else
        rm -f "$VENV"/.foreload-{bench,integrations}-*
    fi
    "$VENV/bin/python" -m pip install --quiet --requirement "$lock"
    touch "$stamp"
done
