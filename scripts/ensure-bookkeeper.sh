#!/usr/bin/env bash
# Some tests run real bookies and the Java client. Fetches them with Maven into build/bookkeeper/lib, once;
# without Maven those tests are skipped, and this says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p build
pom=tests/support/bookkeeper/pom.xml
lib=build/bookkeeper/lib
! cmp -s "$pom" build/bookkeeper/pom.xml || exit 0

if ! command -v mvn >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Maven for the tests on real bookies" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends maven >&2 || true
fi
if ! command -v mvn >/dev/null 2>&1; then
    echo "Tests on real bookies are skipped: they need Maven (Debian, Ubuntu: apt-get install maven)." >&2
    exit 0
fi
echo "Fetching Apache BookKeeper for the tests (once; some 95 MB)" >&2
rm -rf "$lib.part"
if mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$PWD/$lib.part" -DincludeScope=runtime >build/bookkeeper.log 2>&1; then
    rm -rf "$lib"
    mv "$lib.part" "$lib"
    cp "$pom" build/bookkeeper/pom.xml
else
    echo "Tests on real bookies are skipped: Maven could not fetch them; see build/bookkeeper.log." >&2
fi
