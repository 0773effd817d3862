#!/usr/bin/env bash
# Makes .venv with ackgate (editable), the real pulsar-client and the development tools.
# Does nothing, and needs no network, when the last run was with the same files in the same place.
# PYTHON names another interpreter than python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
stamp=.venv/installed

# A virtual environment holds absolute paths, so the place is part of what it is made from.
wanted="$(cat pyproject.toml constraints.txt scripts/install.sh | cksum) $PWD"
made_from=$(cat "$stamp" 2>/dev/null || true)
[ "$made_from" != "$wanted" ] || exit 0

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "ackgate needs Python 3.11 or newer; '$python' is not. Say PYTHON=/path/to/python3.11 make ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$python' cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
fi

case $made_from in
*" $PWD") ;; # an older state of this very place: bring it up to date
*)
    echo "Making .venv with $("$python" --version)" >&2
    rm -rf .venv
    "$python" -m venv .venv
    ;;
esac
rm -f "$stamp"
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input --quiet install -c constraints.txt)
echo "Installing ackgate and its dependencies into .venv (once)" >&2
# The build backend comes first and pinned: an isolated build would fetch a newer one each time.
"${pip[@]}" hatchling editables setuptools
"${pip[@]}" --no-build-isolation -e '.[client,dev]'
printf '%s' "$wanted" >"$stamp"
