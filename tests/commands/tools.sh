#!/usr/bin/env bash
# The commands of tessera-tools are typed as any other: the program becomes the one beside it, or says what to build.
#
#   tools.sh PROGRAM
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$1" "$folder/tessera"
failures=0

expect() {  # CODE PATTERN COMMAND...
  local code=$1 pattern=$2 status=0 output
  shift 2
  output=$("$folder/tessera" "$@" 2>&1) || status=$?
  # shellcheck disable=SC2053 # the right side is a pattern
  if [[ $status != "$code" || $output != $pattern ]]; then
    printf 'tessera %s: expected %s and "%s", got %s and "%s"\n' "$*" "$code" "$pattern" "$status" "$output"
    failures=$((failures + 1))
  fi
}

commands=('plan run.toml --ranks 64' 'bench gemm' 'bench compare run.toml --python python3' 'graph roofline step.graph'
  'plugin check some.so')
for command in "${commands[@]}"; do
  # shellcheck disable=SC2086 # words
  expect 2 "error: ${command%% *}: this command is in another program*$folder/tessera-tools*./dev build tools" $command
done
printf '#!/bin/sh\necho "tools: $*"\nexit 7\n' >"$folder/tessera-tools"
chmod +x "$folder/tessera-tools"
for command in "${commands[@]}"; do
  # shellcheck disable=SC2086 # words
  expect 7 "tools: $command" $command
done
expect 2 '*--rank*' plan run.toml --rank 64 # what is wrong with the words, the program says itself
expect 2 '*some.so*' plugin check some.so --gates-only
expect 0 '*--ranks*' plan --help
((failures == 0))
