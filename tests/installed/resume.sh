#!/usr/bin/env bash
# resume.sh CLASSIFIER LOOP: a run of apps/examples/classifier.cpp that was stopped, interrupted or killed, and was
# started again, ends with the bytes of one that was not; another number of ranks continues it with the same losses.
# The same for apps/examples/training_loop.cpp, which was stopped.
set -euo pipefail
classifier=$1 loop=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# run_in FOLDER COMMAND...
run_in() {
  mkdir -p "$scratch/$1"
  (cd "$scratch/$1" && "${@:2}" >/dev/null)
}

# losses FOLDER: "STEP LOSS" of each step.
losses() {
  sed -E 's/.*"step":([0-9]+),"loss":([^,]+),.*/\1 \2/' "$scratch/$1/metrics.jsonl"
}

# same FOLDER FOLDER STEP: the files of a step's checkpoint are equal.
same() {
  local file found=0
  for file in "$scratch/$1"/checkpoints/step-"$3"/rank-*.safetensors; do
    cmp "$file" "$scratch/$2${file#"$scratch/$1"}"
    found=1
  done
  [[ $found == 1 ]]
}

# stopped FOLDER SIGNAL: starts a run of 2000 steps, sends the signal to its launcher after the first checkpoint, and
# prints its exit code.
stopped() {
  mkdir -p "$scratch/$1"
  cd "$scratch/$1"
  "$classifier" 2 2000 >/dev/null 2>errors &
  local launcher=$! code=0
  until [[ -e checkpoints/step-00000100/checkpoint.json ]]; do sleep 0.01; done
  kill -s "$2" $launcher
  wait $launcher 2>/dev/null || code=$?
  echo $code
}

run_in whole "$classifier" 2 40
run_in resumed "$classifier" 2 20
run_in resumed "$classifier" 2 40
run_in other "$classifier" 1 20
run_in other "$classifier" 3 40
[[ $(losses whole | wc -l) == 40 ]]
diff <(losses whole) <(losses resumed)
same whole resumed 00000040
# Sums over other numbers of ranks round in another order.
paste -d' ' <(losses whole) <(losses other) | awk '{ d = $2 - $4; if ($1 != $3 || d < -2e-5 || d > 2e-5) exit 1 }'

run_in long "$classifier" 2 2000
[[ $(stopped interrupted TERM) == 130 ]]
run_in interrupted "$classifier" 2 2000
same long interrupted 00002000
[[ $(stopped killed KILL) == 137 ]]
run_in killed "$classifier" 2 2000
same long killed 00002000

run_in loop "$loop" 2 40
run_in loop_resumed "$loop" 2 17
run_in loop_resumed "$loop" 2 40
same loop loop_resumed 00000040
