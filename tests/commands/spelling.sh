#!/usr/bin/env bash
# Adds one fault at a time to a small tree and expects cmake/spelling.pl to report it.
#
#   spelling.sh REPOSITORY
set -euo pipefail
check=$1/cmake/spelling.pl
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
# Fresh systems have no git: what it tracks is what is there.
mkdir bin
printf '#!/bin/sh\nfind . -type f -not -path "./bin/*" -printf "%%P\\n"\n' >bin/git
chmod +x bin/git
export PATH=$tree/bin:$PATH

failures=0
expect() {  # STATUS WORDS: of the check
  local output status=0
  output=$(perl "$check" 2>&1) || status=$?
  if [[ $status != "$1" || $output != *"$2"* ]]; then
    printf 'expected status %s and "%s", got %s:\n%s\n' "$1" "$2" "$status" "$output"
    failures=$((failures + 1))
  fi
}

mkdir cmake
echo 'sharded # terms' >cmake/words.txt
printf '# A page\n\nTensors are sharded; `shraded` and\n```\ncode blcoks\n```\nare code, see [it](a/lnik.md).\n' >page.md
printf '// A tensor of x_of_shrads.\nint wrng;  // colour or color\n' >a.cpp
printf '#!/bin/sh\n# A script.\nwrng=1\n' >a.sh
expect 0 '0 findings'
echo 'Tensors are shraded.' >>page.md
expect 1 "page.md:8: 'shraded' is in no dictionary"
sed -i '$d' page.md
echo 'int b;  // the sahpe' >>a.cpp
expect 1 "a.cpp:3: 'sahpe' is in no dictionary"
sed -i '$d' a.cpp
echo '# Teh script.' >>a.sh
expect 1 "a.sh:4: 'Teh' is in no dictionary"
sed -i '$d' a.sh
echo 'unused' >>cmake/words.txt
expect 1 "nothing uses 'unused' any more"
exit $((failures > 0))
