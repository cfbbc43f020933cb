#!/usr/bin/env bash
# Adds one fault at a time to a small tree and expects cmake/words.pl to report it.
#
#   words.sh REPOSITORY
set -euo pipefail
check=$1/cmake/words.pl
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
# Fresh systems have no git: what it tracks is what is there.
mkdir bin
cat >bin/git <<'SH'
#!/bin/sh
case $2 in
  modules/tessera*) echo modules/tessera/ops.cppm ;;
  *) find modules -type f ;;
esac
SH
chmod +x bin/git
export PATH=$tree/bin:$PATH

failures=0
expect() {  # STATUS WORDS: of the check
  local output status=0
  output=$(perl "$check" . 2>&1) || status=$?
  if [[ $status != "$1" || $output != *"$2"* ]]; then
    printf 'expected status %s and "%s", got %s:\n%s\n' "$1" "$2" "$status" "$output"
    failures=$((failures + 1))
  fi
}

mkdir -p cmake docs modules/tessera modules/low/functions
printf '| term | meaning | in the code |\n| --- | --- | --- |\n| mesh | the ranks | `DeviceMesh` |\n' >docs/glossary.md
echo 'using ops::all_gather;' >modules/tessera/ops.cppm
printf '# Words.\nbox ops a\ngathered-  # not alone\n' >cmake/names.txt
printf 'struct GatheredBoxes {\n};\nclass DeviceMesh final {\n};\nstruct box;  // another name\n' >modules/low/all_gather.cpp
echo 'struct GatheredBox {' >modules/low/functions/a.hpp
expect 0 '0 findings'
echo 'enum class Where : int { here };' >>modules/low/all_gather.cpp
expect 1 "modules/low/all_gather.cpp:6: 'where' of Where is in no list"
sed -i '$d' modules/low/all_gather.cpp
echo 'struct MeshGathered {' >>modules/low/all_gather.cpp
expect 1 "modules/low/all_gather.cpp:6: MeshGathered ends in 'gathered', which says how a thing is"
sed -i '$d' modules/low/all_gather.cpp
touch modules/low/room.cpp
expect 1 "modules/low/room.cpp:1: 'room' of room is in no list"
rm modules/low/room.cpp
echo unused >>cmake/names.txt
expect 1 "no name has 'unused' any more"
exit $((failures > 0))
