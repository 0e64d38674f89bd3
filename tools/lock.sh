#!/usr/bin/env bash
# Resolves requirements/*.in into requirements/*.lock: dev and bench together, then integrations, docs and dlio on top of
# dev, and servers and release by themselves.
#
# Called by `make lock`, by hand, when a requirement changes or is to be refreshed; the locks are committed. It needs uv
# (`pip install uv`), which is used for nothing else: pip installs, so that a user's pip configuration is honoured.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

UV=${UV:-uv}
command -v "$UV" >/dev/null || { echo "make lock needs uv: pip install uv (or UV=path)" >&2; exit 1; }
whole=$(mktemp)
trap 'rm -f "$whole"' EXIT

compile() {
    "$UV" pip compile --quiet --python-version 3.11 --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links "$@"
}

lock() { # lock NAME CONSTRAINTS
    { echo "# Made by \`make lock\` from $1.in; not edited by hand." && compile --constraint "$2" "$1.in"; } >"$1.lock"
}

compile dev.in bench.in >"$whole"
lock dev "$whole"
lock bench "$whole"
lock integrations dev.lock
lock docs dev.lock
lock dlio dev.lock
lock servers /dev/null
lock release /dev/null
wc -l ./*.lock
