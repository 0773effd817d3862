#!/usr/bin/env bash
# Some tests start real servers that run on Java. Finds Java 17 or newer; installs it from the
# distribution if it may, else says what to install and exits 1.
set -euo pipefail

major_version() { # 17 of `openjdk version "17.0.15"`, 1 of `java version "1.8.0"`; nothing if it does not run
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

is_new_enough() {
    local version
    command -v "$1" >/dev/null 2>&1 || return 1
    version=$(major_version "$1")
    [ -n "$version" ] && [ "$version" -ge 17 ]
}

! is_new_enough "${JAVA_HOME:+$JAVA_HOME/bin/}java" || exit 0
! is_new_enough java || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Java for the tests" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for version in 17 21 25; do # each release of a distribution has one or two of them
        apt-get install -y -qq --no-install-recommends "openjdk-$version-jre-headless" >&2 || continue
        ! is_new_enough java || exit 0
    done
fi
cat >&2 <<'END'
The tests need Java 17 or newer, and it is not here. Install it, for example:
  Debian, Ubuntu:  apt-get install openjdk-17-jre-headless
  Fedora:          dnf install java-17-openjdk-headless
  macOS:           brew install openjdk@17
or let JAVA_HOME point to one.
END
exit 1
