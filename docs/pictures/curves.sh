#!/usr/bin/env bash
# Draws curves.svg: the demo's loss in three layouts, and how far the others are from one rank. Needs the built program and
# gnuplot; takes a few minutes.
#
#   docs/pictures/curves.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

losses() { # NAME ARGS...: the losses of all steps, one a line
  local name=$1
  shift
  build/release/bin/tessera train configs/demo.toml train.steps=200 optimizer.lr=1e-3 checkpoint.every=0 "checkpoint.folder=$work/$name.checkpoints" log.sample=0 \
    data.validation=0 data.validate_every=0 "log.metrics=$work/$name.jsonl" "$@" >"$work/$name.out"
  sed -E 's/.*"loss":([0-9.e-]+).*/\1/' "$work/$name.jsonl" >"$work/$name"
}
losses one 'mesh.axes=[]' 'mesh.shape=[]' 'parallel=[]'
losses fsdp 'mesh.axes=["shard"]' 'mesh.shape=[2]' 'parallel=[{style="FSDP",axis="shard",on=["model.layers.*","."]}]'
losses both
paste "$work"/{one,fsdp,both} >"$work/all"

gnuplot <<END
set terminal svg size 760,420 font 'sans-serif,13' background rgb 'white'
set output 'docs/pictures/curves.svg'
set multiplot layout 2,1
set lmargin 11
set key top right
set xrange [1:200]
set format x ''
set ylabel 'loss'
set bmargin 0.5
plot '$work/all' using 0:1 with lines lw 9 lc rgb '#c6dbef' title 'one rank', \
     '' using 0:2 with lines lw 4 lc rgb '#6baed6' title 'FSDP, 2 ranks', \
     '' using 0:3 with lines lw 1 lc rgb '#08306b' title 'FSDP x tensor parallel, 4 ranks'
set tmargin 0.5
set bmargin 3
set format x '%g'
set xlabel 'step'
set ylabel 'less one rank'
set format y '%.0e'
set yrange [-2e-5:2e-5]
set key off
plot '$work/all' using 0:(\$2-\$1) with lines lw 2 lc rgb '#6baed6', \
     '' using 0:(\$3-\$1) with lines lw 1 lc rgb '#08306b'
END
