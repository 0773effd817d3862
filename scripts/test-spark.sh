#!/usr/bin/env bash
# Runs the pipeline's tests on another PySpark than the pinned one: `test-spark.sh 4.3.0 [PYTEST WORDS]`.
# Its virtual environment is build/spark-VERSION; everything else in it is as pinned in constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?which PySpark: 4.0 to 4.3, as 4.3.0}
shift
case $version in
4.[0-3].*) ;;
*)
    echo "test-spark.sh: $version is not 4.0 to 4.3 (say all of it, as 4.3.0)" >&2
    exit 2
    ;;
esac
place=build/spark-$version
wanted="$(cat pyproject.toml constraints.txt scripts/test-spark.sh | cksum) $PWD"
if [ "$(cat "$place/installed" 2>/dev/null || true)" != "$wanted" ]; then
    echo "Making $place (once; some 600 MB, which takes a few minutes)" >&2
    rm -rf "$place"
    mkdir -p build
    "${PYTHON:-python3}" -m venv "$place"
    # Each PySpark wants a py4j of its own.
    grep -vE '^(pyspark|py4j)==' constraints.txt >"$place/constraints.txt"
    pip=("$place/bin/python" -m pip --disable-pip-version-check --no-input --quiet install -c "$place/constraints.txt")
    "${pip[@]}" hatchling editables setuptools
    "${pip[@]}" --no-build-isolation -e '.[testing,client,dev,spark]' "pyspark==$version"
    printf '%s' "$wanted" >"$place/installed"
fi
[ $# -gt 0 ] || set -- tests/pipeline tests/unit/pipeline
exec "$place/bin/python" -m pytest "$@"
