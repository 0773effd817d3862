#!/usr/bin/env bash
# Some tests look at the real Pulsar, and some benchmarks run beside it. Fetches it with Maven into
# build/pulsar/lib, once; without it those tests are skipped and say so. `make pulsar` runs this: 235 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pom=bench/peers/pulsar/pom.xml
lib=build/pulsar/lib
! cmp -s "$pom" build/pulsar/pom.xml || exit 0

if ! command -v mvn >/dev/null 2>&1; then
    echo "The real Pulsar is fetched with Maven (Debian, Ubuntu: apt-get install maven)." >&2
    exit 1
fi
echo "Fetching Apache Pulsar for the tests (once; some 235 MB)" >&2
mkdir -p build/pulsar
rm -rf "$lib.part"
mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$PWD/$lib.part" -DincludeScope=runtime
rm -rf "$lib"
mv "$lib.part" "$lib"
cp "$pom" build/pulsar/pom.xml
echo "Fetched: .venv/bin/python -m pytest tests/pulsar runs them (its Spark tables need \`make spark\`)" >&2
