#!/usr/bin/env bash
# What ./dev does to a machine. Replacements for apt and dpkg record how they are called.
#
#   dev.sh REPOSITORY
set -euo pipefail
unset TESSERA_SETUP # of whoever runs this
repository=$1
machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
chmod 755 "$machine"
failures=0

stand_in() {  # NAME: its body comes from stdin; it runs before any real program of that name
  { echo '#!/bin/bash'; cat; } >"$machine/bin/$1"
  chmod 755 "$machine/bin/$1"
}

new_machine() {  # INSTALLED: what dpkg-query says of each package
  rm -rf "${machine:?}"/*
  mkdir -p "$machine/bin" "$machine/cache"
  cp "$repository/dev" "$machine/" # where every user may read it
  : >"$machine/calls"
  chmod 777 "$machine/calls" "$machine/cache"
  stand_in dpkg-query <<<"echo -n $1"
  stand_in clang++-19 <<<'echo "Selected GCC installation: /usr/lib/gcc/x86_64-linux-gnu/12"'
  stand_in cmake <<<'echo "cmake version 3.31.6"'
  stand_in ninja <<<'echo 1.11'
  stand_in sudo <<<'exit 1'
  stand_in apt-get <<<"echo \"\$*\" >>$machine/calls"
}

dev() {  # ARGS...: sets output, calls and status
  status=0
  output=$(env PATH="$machine/bin:/usr/bin:/bin" XDG_CACHE_HOME="$machine/cache" ${as_user:-} \
    "$machine/dev" "$@" 2>&1 </dev/null) || status=$?
  calls=$(<"$machine/calls")
}

expect() {  # WHAT CONDITION...
  local what=$1
  shift
  if ! "$@"; then
    printf 'failed: %s\nstatus %s\noutput:\n%s\ncalls:\n%s\n' "$what" "$status" "$output" "$calls"
    failures=$((failures + 1))
  fi
}
# shellcheck disable=SC2053 # the right side is a pattern
is() { [[ $1 == $2 ]]; }

new_machine installed
dev setup
expect 'nothing is installed twice' is "$status:$calls:$output" '0::'

if ((EUID == 0)); then  # as another user sudo would be asked first
  new_machine absent
  dev setup
  expect 'what is missing is installed' is "$status:$calls" '0:install *clang-19 *'
  expect 'without an update of good lists' is "${calls/update/}" "$calls"
  expect 'and it says what' is "$output" '*installing clang-19*libdnnl-dev*'

  new_machine absent
  stand_in apt-get <<<"echo \"\$*\" >>$machine/calls; [[ \$1 == update ]] && touch $machine/new; [[ -e $machine/new ]]"
  dev setup
  expect 'stale lists are updated' is "$status:$calls" '0:install *update*install *'

  new_machine absent
  stand_in apt-get <<<"echo 'E: no network'; exit 100"
  dev setup
  expect 'a failure of apt is shown' is "$status:$output" '1:*E: no network*could not install*'

  new_machine absent
  as_user='setpriv --reuid=65534 --regid=65534 --clear-groups' dev setup
  expect 'neither root nor sudo' is "$status:$calls:$output" '1::*ask an administrator for: apt-get install *clang-19*'
fi

new_machine absent
TESSERA_SETUP=0 dev setup
expect 'TESSERA_SETUP=0 installs nothing' is "$status:$calls" '0:'

# Debian 13 installs Catch2 with nothing else: what builds the program must not configure the tests.
new_machine absent
stand_in cmake <<<"echo \"\$*\" >>$machine/calls; echo 'cmake version 3.31.6'"
stand_in ctest <<<'echo 100% tests passed, 0 tests failed out of 1'
if ((EUID == 0)); then
  dev build
  expect 'the program is built without Catch2' is "$status:${calls/catch2/}" "0:$calls"
fi
TESSERA_SETUP=0 dev build
expect 'the program is built without its tests' is "$status:$calls" '0:*--preset release -D TESSERA_BUILD_TESTS=OFF*'
TESSERA_SETUP=0 dev test
expect 'the tests are configured where they are built' is "$status:$calls" \
  '0:*--preset release -D TESSERA_BUILD_TESTS=ON*'
: >"$machine/calls"
touch "$machine/build/release/CTestTestfile.cmake"
TESSERA_SETUP=0 dev build
expect 'and stay configured' is "$status:$calls" '0:*--preset release -D TESSERA_BUILD_TESTS=ON*'

# Nobody waits for what the command does not need.
new_machine installed
stand_in cmake <<<"echo \"\$*\" >>$machine/calls; echo 'cmake version 3.31.6'"
builds() {  # TARGETS PRESET ARGS...: what ./dev ARGS builds
  local targets=$1 preset=$2
  shift 2
  : >"$machine/calls"
  TESSERA_SETUP=0 dev "$@"
  expect "./dev $* builds $targets with $preset" is "$calls" "*--build --preset $preset --parallel * --target $targets -- *"
}
builds program release build
builds program release run train my.toml
builds program release run plugin list
builds tools release build tools
builds tools release bench
builds tools release run plan my.toml
builds tools release run graph roofline step.graph
builds tools release run plugin check my.so
builds program dev build --preset dev
builds 'test_base test_ops' dev build test_base --preset dev test_ops
builds all dev test dev
dev build --preset asan
expect 'tests have presets of their own' is "$status:$output" "1:*the preset 'asan' is unknown (expected release or dev)*"
dev build --tools
expect 'an option that is none' is "$status:$output" "1:*'--tools' is unknown (expected targets, or --preset dev)*"

new_machine installed
stand_in cmake <<<'echo "cmake version 3.28.3"'
TESSERA_SETUP=0 dev setup
expect 'a CMake that is too old does not pass' is "$status:$output" '1:*CMake (>= 3.30, < 4.4)*'
stand_in cmake <<<'echo "cmake version 4.4.0"'
TESSERA_SETUP=0 dev setup
expect 'nor one that is too new' is "$status:$output" '1:*< 4.4*'

# A stand-in of Python makes an environment whose pip brings, or does not bring, a compiler for GPUs.
python_with() {  # FILE: what pip makes, below the environment
  stand_in python3 <<<"mkdir -p \"\$4/bin\"; echo 'mkdir -p \$(dirname '\$4'/$1); cp /bin/echo '\$4'/$1' >\"\$4/bin/pip\"
    chmod 755 \"\$4/bin/pip\""
}
new_machine installed
python_with lib/python3.11/site-packages/nvidia/cu13/bin/nvcc
dev setup cuda
expect 'nvcc is taken from PyPI' is "$status:$(ls "$machine"/cache/tessera-tools-cuda/toolkit/bin)" '0:nvcc'
stand_in cmake <<<"echo \"\$CUDA_HOME\" >>$machine/calls; echo 'cmake version 3.31.6'"
TESSERA_SETUP=0 dev build
expect 'and used by builds' is "$status:$calls" "0:*$machine/cache/tessera-tools-cuda/toolkit*"
rm -r "$machine/cache/tessera-tools-cuda"
python_with something/else
dev setup cuda
expect 'packages without nvcc are an error' is "$status:$output" '1:*the packages from PyPI have no nvcc in *'
dev setup cude
expect 'setup takes only cuda and arrow' is "$status:$output" "1:*'cude' is unknown (expected cuda or arrow, or nothing)*"

new_machine installed
dev bild
expect 'an unknown command' is "$status:$output" "1:*unknown command 'bild'*"
dev help
for command in $(grep -oshE '^ {4,}\./dev [a-z]+' "$repository"/README.md "$repository"/docs/*.md | sed 's/.* //' | sort -u); do
  expect "./dev help explains '$command' of the pages" is "$output" "*  $command *"
done

((failures == 0))
