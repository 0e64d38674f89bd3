#!/usr/bin/env bash
# Resolves requirements/*.in into requirements/*.lock, all in one resolution so that one environment can hold them together.
#
# Called by `make lock`, by hand, when a requirement changes or is to be refreshed; the locks are committed. It needs uv
# (`pip install uv`), which is used for nothing else: pip installs, so that a user's pip configuration is honoured.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

command -v "${UV:-uv}" >/dev/null || { echo "make lock needs uv: pip install uv (or UV=path)" >&2; exit 1; }
whole=$(mktemp); trap 'rm -f "$whole"' EXIT
compile() {
    "${UV:-uv}" pip compile --quiet --python-version 3.11 --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links "$@"
}

compile dev.in bench.in integrations.in >"$whole"
for name in dev bench integrations; do
    { echo "# Made by \`make lock\` from $name.in; not edited by hand."; compile --constraint "$whole" "$name.in"; } >"$name.lock"
done
wc -l ./*.lock
