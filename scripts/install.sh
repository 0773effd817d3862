#!/usr/bin/env bash
# Makes .venv with ackgate (editable), the real pulsar-client and the development tools.
# With the word `spark`, PySpark as well (some 600 MB with PyArrow and pandas): the data pipeline runs on
# it, and its jars hold the ZooKeeper that tests start.
# Does nothing, and needs no network, when the last run was with the same files in the same place.
# PYTHON names another interpreter than python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
stamp=.venv/installed
spark_stamp=.venv/installed-spark
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input --quiet install -c constraints.txt)

# A virtual environment holds absolute paths, so the place is part of what it is made from.
wanted="$(cat pyproject.toml constraints.txt scripts/install.sh | cksum) $PWD"
made_from=$(cat "$stamp" 2>/dev/null || true)

install_ackgate() {
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
    echo "Installing ackgate and its dependencies into .venv (once)" >&2
    # The build backend comes first and pinned: an isolated build would fetch a newer one each time.
    "${pip[@]}" hatchling editables setuptools
    "${pip[@]}" --no-build-isolation -e '.[broker,zookeeper,client,testing,dev]'
    printf '%s' "$wanted" >"$stamp"
}

install_spark() {
    local wanted
    wanted=$(grep -E '^(fsspec|pandas|py4j|pyarrow|pyspark|setuptools|vl-convert-python)==' constraints.txt)
    [ "$(cat "$spark_stamp" 2>/dev/null || true)" != "$wanted" ] || return 0
    echo "Installing PySpark (once; some 600 MB, which takes a few minutes)" >&2
    rm -f "$spark_stamp"
    # It comes as source only; an isolated build would fetch a newer setuptools each time.
    "${pip[@]}" setuptools
    "${pip[@]}" --no-build-isolation -e '.[spark]'
    printf '%s' "$wanted" >"$spark_stamp"
}

[ "$made_from" = "$wanted" ] || install_ackgate
case ${1:-} in
"") ;;
spark) install_spark ;;
*)
    echo "install.sh: what is '$1'? Only 'spark' can be had beside the rest" >&2
    exit 2
    ;;
esac
