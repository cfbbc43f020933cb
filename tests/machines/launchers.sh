#!/usr/bin/env bash
# Ranks of several launchers, on machines that this one plays, connected by the transport tcp or ucx.
#
#   launchers.sh PART RANK TRANSPORT
set -euo pipefail
part=$1 rank=$2 transport=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset TESSERA_JOB TESSERA_MACHINE RANK WORLD_SIZE
source "$(dirname "$0")/nothing_left.sh"

fail() { echo "launchers.sh: $*" >&2; tail -n 40 "$scratch"/out.* >&2; exit 1; }

# run RANKS MACHINES WORDS...: one launcher for each machine. The output of machine m is in
# $scratch/out.m, its exit status in ${codes[m]}.
run() {
  local ranks=$1 machines=$2 m port=$((20000 + RANDOM % 12000)) started=()
  shift 2
  rm -f "$scratch"/out.*
  codes=()
  for ((m = machines - 1; m >= 0; m--)); do  # machine 0 comes last
    TESSERA_MACHINE=m$m TESSERA_MACHINES=$machines TESSERA_MACHINE_NUMBER=$m TESSERA_MEET=localhost:$port \
      timeout 60 "$rank" "$@" "$ranks" "$transport" >"$scratch/out.$m" 2>&1 </dev/null &
    started[m]=$!
  done
  for ((m = 0; m < machines; m++)); do
    codes[m]=0
    wait "${started[m]}" || codes[m]=$?
  done
}

# all CODE: every launcher ended with it.
all() {
  local code
  for code in "${codes[@]}"; do
    [[ $code == "$1" ]] || fail "exit statuses ${codes[*]}, not $1"
  done
}

# say TEXT...: the output of every launcher has each text exactly once.
say() {
  local text file
  for text; do
    for file in "$scratch"/out.*; do
      [[ $(grep -cF -- "$text" "$file") == 1 ]] || fail "${file##*/}: not once: $text"
    done
  done
}

collectives() {
  run 4 2 collectives
  all 0
  run 3 3 collectives
  all 0
  run 2 2 stopped
  all 0
  nothing_left
}

failures() {
  run 4 2 differ
  all 1
  say 'error: ' 'rank 1 calls all_reduce(f32, 1, sum)' 'last calls of each rank:'
  run 4 2 exception
  all 2
  say 'error: rank 3, step 7, model.layers.3: config: no such key'
  run 4 2 ended
  all 1
  say 'rank 0 waits for rank'
  run 4 2 late
  all 1
  grep -q 'barrier(), call 1 of group \[0, 1, 2, 3\]: rank 0 has waited' "$scratch/out.0" || fail 'no wait is named'
  # A rank that has others on its machine, and one that is alone there.
  for machines in 2 4; do
    run 4 $machines killed
    all 1
    say 'error: rank 3 was killed by signal 9 (Killed) at step 20 in forward; its last call: all_reduce(f32, 1, sum), call 20 of group'
  done
  nothing_left
}

# start MACHINE WORDS...: one launcher of a run on three machines at the port $port.
start() {
  local m=$1
  shift
  TESSERA_MACHINE=m$m TESSERA_MACHINES=3 TESSERA_MACHINE_NUMBER=$m TESSERA_MEET=localhost:$port \
    timeout 60 "$rank" "$@" "$transport" >>"$scratch/out.$m" 2>&1 </dev/null &
  started[m]=$!
}

# appears TEXT FILE TIMES: within 20 s.
appears() {
  local i
  for ((i = 0; i < 400; i++)); do
    [[ $(grep -cF -- "$1" "$2" || true) -ge $3 ]] && return
    sleep 0.05
  done
  fail "${2##*/}: not $3 times: $1"
}

# Machines that are lost, one after the other, each replaced. Every start checks what was kept.
replaced() {
  local m started=() port=$((20000 + RANDOM % 12000)) round=0
  codes=()
  for m in 0 1 2; do
    start $m heals 6
  done
  for m in 1 0 2; do
    round=$((round + 1))
    appears 'it goes on' "$scratch/out.0" $round
    pkill -KILL -P "${started[m]}"  # the launcher; `timeout` ends with it
    wait "${started[m]}" 2>/dev/null || true
    start $m heals 6
    appears ' after step ' "$scratch/out.$(((m + 1) % 3))" $round
    appears 'joins after step ' "$scratch/out.$m" 1
  done
  for m in 0 1 2; do
    codes[m]=0
    wait "${started[m]}" || codes[m]=$?
  done
  all 0
  grep -q 'after step -1' "$scratch"/out.* && fail 'a state was lost'
  [[ $(cat "$scratch"/out.* | grep -c 'is done') == 6 ]] || fail 'not all ranks were done'
  nothing_left
}

# What a rank's own crash says, with UCX loaded: the signal and nothing of UCX, which writes no log either.
quiet() {
  run 4 2 crashed
  all 1
  say 'error: rank 3 was killed by signal 11 (Segmentation fault) at step 3 in forward'
  ! grep -i 'ucx\|backtrace' "$scratch"/out.* || fail 'UCX says something'
  UCX_NO_SUCH_VARIABLE=1 run 2 2 collectives
  all 0
  [[ ! -s $scratch/out.0 && ! -s $scratch/out.1 ]] || fail 'a run that works says something'
  nothing_left
}

# Ranks that something else has started, and that have an address.
others() {
  local r port=$((20000 + RANDOM % 12000)) started=()
  for r in 3 2 1 0; do
    TESSERA_MACHINE=m$((r / 2)) TESSERA_JOB=launchers-$$ RANK=$r WORLD_SIZE=4 TESSERA_MEET=localhost:$port \
      timeout 60 "$rank" collectives 4 "$transport" >"$scratch/out.$r" 2>&1 </dev/null &
    started[r]=$!
  done
  for r in 0 1 2 3; do
    wait "${started[r]}" || fail "rank $r: exit status $?"
  done
  nothing_left
}

"$part"
