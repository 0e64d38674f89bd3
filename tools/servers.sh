#!/usr/bin/env bash
# Installs independent object stores into .servers/bin, for tests/system/test_interop.py, a file system's test suite, for
# test_mounted_posix.py, and a benchmark that reads files, for test_mounted_tools.py: `tools/servers.sh [NAME...]`.
#
# moto (S3; needs Python only), versitygw (S3) and fake-gcs-server (Google; both need Go), azurite (Azure; needs npm), pjdfstest (needs Cargo), and by its name
# alone dlio (needs .venv, and 2 GB more). Without names it installs the others whose tool chain is there and says which it leaves out. The tests look here and on PATH. Called by
# `make servers`, by hand: the first time takes minutes, for Go compiles.
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD/.servers
mkdir -p "$ROOT/bin"

versitygw=v1.8.0 gcs=v1.56.1 azurite=3.37.0 pjdfstest=0.2.2

say() { printf 'servers: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null || { say "$2 needs $1: left out"; return 1; }; }

moto() {
    python3 -m venv "$ROOT/moto"
    "$ROOT/moto/bin/pip" install --quiet --requirement requirements/servers.lock
    ln -sf ../moto/bin/moto_server "$ROOT/bin/moto_server"
}
versitygw() { ! has go versitygw || GOBIN=$ROOT/bin go install "github.com/versity/versitygw/cmd/versitygw@$versitygw"; }
fake-gcs-server() { ! has go fake-gcs-server || GOBIN=$ROOT/bin go install "github.com/fsouza/fake-gcs-server@$gcs"; }
azurite() {
    has npm azurite || return 0
    npm install --silent --no-fund --no-audit --prefix "$ROOT/azurite" "azurite@$azurite"
    ln -sf ../azurite/node_modules/.bin/azurite-blob "$ROOT/bin/azurite-blob"
}
pjdfstest() { [ -x "$ROOT/bin/pjdfstest" ] || ! has cargo pjdfstest || cargo install --quiet --locked --debug --root "$ROOT" "pjdfstest@$pjdfstest"; }
dlio() {
    [ -x .venv/bin/python ] || { say "dlio needs .venv (make setup): left out"; return 0; }
    .venv/bin/python -m venv "$ROOT/dlio"
    local site='import sysconfig; print(sysconfig.get_paths()["purelib"])'
    .venv/bin/python -c "$site" >"$("$ROOT/dlio/bin/python" -c "$site")/tests.pth"
    "$ROOT/dlio/bin/pip" install --quiet --no-deps --requirement requirements/dlio.lock dlio-benchmark==2.0.0
    ln -sf ../dlio/bin/dlio_benchmark "$ROOT/bin/dlio_benchmark"
}

[ $# -gt 0 ] || set -- moto versitygw fake-gcs-server azurite pjdfstest
for name in "$@"; do
    case $name in
    moto | versitygw | fake-gcs-server | azurite | pjdfstest | dlio) say "installing $name" && "$name" ;;
    *) say "unknown: $name (moto, versitygw, fake-gcs-server, azurite, pjdfstest, dlio)" && exit 2 ;;
    esac
done
ls "$ROOT/bin"
