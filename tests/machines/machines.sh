#!/usr/bin/env bash
# Ranks on machines that this one plays, connected by MPI over TCP.
#
#   machines.sh PART MPIRUN RANK PROGRAM REPOSITORY
set -euo pipefail
part=$1 mpirun=$2 rank=$3 program=$4 repository=$5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset TESSERA_JOB TESSERA_MACHINE RANK WORLD_SIZE
source "$(dirname "$0")/nothing_left.sh"

fail() { echo "machines.sh: $*" >&2; cat "$scratch/out" >&2; exit 1; }

# run RANKS MACHINES COMMAND...: its output, stdout and stderr, is in $scratch/out, its exit status in $code.
run() {
  export RANKS=$1 MACHINES=$2
  shift 2
  code=0
  timeout 120 "$mpirun" -n "$RANKS" --oversubscribe --bind-to none --mca pml ob1 --mca btl tcp,self \
    --mca btl_tcp_if_include lo bash -c \
    'TESSERA_MACHINE=m$((OMPI_COMM_WORLD_RANK * MACHINES / RANKS)) exec "$@"' rank "$@" \
    >"$scratch/out" 2>&1 </dev/null || code=$?
}

# says TEXT...: the output has each text exactly once.
says() {
  local text
  for text; do
    [[ $(grep -cF -- "$text" "$scratch/out") == 1 ]] || fail "not once: $text"
  done
}

# Open MPI 5 ends a job itself when a connection closes, and is sometimes first: it names no rank then.
mpirun_ended_it() { grep -qF '*** on a NULL communicator' "$scratch/out"; }

collectives() {
  run 4 2 "$rank" collectives 4
  [[ $code == 0 ]] || fail "exit status $code"
  run 3 3 "$rank" collectives 3
  [[ $code == 0 ]] || fail "exit status $code"
  run 2 2 "$rank" stopped 2
  [[ $code == 0 ]] || fail "a request to stop: exit status $code"
  nothing_left
}

failures() {
  run 4 2 "$rank" differ 4
  [[ $code == 1 ]] || fail "exit status $code"
  says 'error: ' 'rank 1 calls all_reduce(f32, 1, sum)' 'last calls of each rank:'
  grep -q 'calls barrier() while\|while rank . calls barrier()' "$scratch/out" || fail "one side is missing"
  nothing_left

  run 4 2 "$rank" exception 4
  [[ $code == 2 ]] || fail "exit status $code"
  says 'error: rank 3, step 7, model.layers.3: config: no such key'
  nothing_left

  run 4 2 "$rank" ended 4
  [[ $code == 1 ]] || fail "exit status $code"
  says 'rank 0 waits for rank'
  nothing_left

  run 4 2 "$rank" late 4
  [[ $code == 1 ]] || fail "exit status $code"
  says 'barrier(), call 1 of group [0, 1, 2, 3]: rank 0 has waited'
  nothing_left

  # The rank that dies has another one on its machine, which notices.
  run 4 2 "$rank" killed 4
  [[ $code != 0 ]] || fail "exit status $code"
  mpirun_ended_it ||
    says 'error: ' 'rank 3, on the machine of this rank, has died at step 20; its last call: all_reduce(f32, 1, sum), call 20 of group'
  nothing_left
  # It was alone there: mpirun names it, and ends the others.
  SECONDS=0
  run 4 4 "$rank" killed 4
  [[ $code != 0 ]] || fail "exit status $code"
  mpirun_ended_it || says 'process rank 3'
  ((SECONDS < 20)) || fail "it took $SECONDS s"
  nothing_left
}

refusals() {
  # Each rank has the same mistake: one says so.
  run 4 2 "$program" train "$repository/configs/hybrid.toml" train.stepz=1
  [[ $code == 2 ]] || fail "exit status $code"
  says 'train.stepz'
  run 4 2 "$program" train "$repository/configs/hybrid.toml" mesh.transport=shm
  [[ $code == 2 ]] || fail "exit status $code"
  says "all ranks must be on one machine with the transport 'shm'"
  run 4 2 "$program" train "$repository/configs/hybrid.toml" mesh.transport=mpo
  [[ $code == 2 ]] || fail "exit status $code"
  says "mpo"
}

# The losses of a run on two machines are those on one, bit by bit.
layouts() {
  local name options ranks losses
  cd "$scratch"
  for name in fully_sharded replicated tensor_parallel sequence_parallel loss_parallel hybrid fsdp_tensor gpt2 three_d; do
    ranks=2
    ! grep -q 'shape = \[2, 2' "$repository/configs/$name.toml" || ranks=4
    ! grep -q 'shape = \[2, 2, 2\]' "$repository/configs/$name.toml" || ranks=8
    options=(train.steps=4 optimizer.warmup=1 checkpoint.folder= log.sample=0)
    "$program" train "$repository/configs/$name.toml" "${options[@]}" log.metrics="$scratch/one" \
      >"$scratch/out" 2>&1 </dev/null || fail "$name on one machine"
    run $ranks 2 "$program" train "$repository/configs/$name.toml" "${options[@]}" log.metrics="$scratch/two"
    [[ $code == 0 ]] || fail "$name: exit status $code"
    [[ $(grep -c '^  model  ' "$scratch/out") == 1 ]] || fail "$name: not one rank prints the table"
    for losses in one two; do
      grep -o '"loss":[^,]*,"grad_norm":[^,]*' "$scratch/$losses" >"$scratch/$losses.losses"
    done
    [[ $(wc -l <"$scratch/one.losses") == 4 ]] || fail "$name: no losses"
    cmp "$scratch/one.losses" "$scratch/two.losses" || fail "$name: other losses on two machines"
    rm "$scratch/one" "$scratch/two"
  done
}

"$part"
