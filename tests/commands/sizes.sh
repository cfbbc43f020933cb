#!/usr/bin/env bash
# Adds one fault at a time to a small tree and expects cmake/sizes.pl to report it.
#
#   sizes.sh REPOSITORY
set -euo pipefail
check=$1/cmake/sizes.pl
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"

# body NAME [LINES]: a function of so many lines, at least 3
body() {
  printf 'void %s() {\n' "$1"
  for ((i = 2; i < ${2:-3}; ++i)); do echo '  work();'; done
  echo '}'
}

failures=0
expect() {  # STATUS WORDS: of the check
  local output status=0
  output=$(perl "$check" . 2>&1) || status=$?
  if [[ $status != "$1" || $output != *"$2"* ]]; then
    printf 'expected status %s and "%s", got %s:\n%s\n' "$1" "$2" "$status" "$output"
    failures=$((failures + 1))
  fi
}

mkdir -p modules/one/parts plugins/two
body 'Wide::a' 80 >modules/one/a.cpp
body 'Wide::b' >modules/one/b.cpp
body 'Wide::c' >plugins/two/c.cpp
expect 0 'largest functions'
body 'Wide::Inner::c' >modules/one/parts/c.cpp
expect 0 'largest functions'
body 'Wide::c' >>modules/one/parts/c.cpp
expect 1 'the methods of Wide are in 3 bodies (modules/one/a.cpp modules/one/b.cpp modules/one/parts/c.cpp)'
rm modules/one/parts/c.cpp
body 'long_one' 81 >>modules/one/b.cpp
expect 1 'modules/one/b.cpp:4: long_one has 81 lines'
((failures == 0))
