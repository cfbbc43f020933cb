#!/usr/bin/env bash
# The demo, whole, as ./dev train runs it after the build: it must learn to write like its text.
#   demo.sh SOURCE PROGRAM
set -euo pipefail
export LC_ALL=C
source=$1 program=$2
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r "$source/configs" "$scratch/configs"
cd "$scratch"
"$program" train configs/demo.toml >out 2>&1 || { cat out >&2; fail "it ended with $?"; }
tail -n 25 out

metrics=runs/demo/metrics.jsonl
loss=$(grep -o '"validation_loss":[0-9.]*' $metrics | tail -n 1 | cut -d: -f2)
perl -e 'exit !($ARGV[0] < 2.0)' "${loss:-99}" || fail "validation loss $loss; below 2.0 nats a byte was expected"

# Of the sample's words of three letters or more, half occur in the text.
sed -n '/^A sample of/,/^checkpoint/p' out | sed '1d;$d' | grep -oE '[A-Za-z]{3,}' | sort -u >words
cat /usr/share/perl/5*/pod/*.pod | grep -oE '[A-Za-z]{3,}' | sort -u >known
(($(wc -l <words) >= 10)) || fail "the sample has $(wc -l <words) words"
occur=$(comm -12 words known | wc -l)
echo "$occur of the sample's $(wc -l <words) different words occur in the text"
((2 * occur >= $(wc -l <words))) || fail "fewer than half of the words occur in the text"

# What the last lines name is there.
checkpoint=$(sed -n 's/^checkpoint  *//p' out | tail -n 1)
"$program" checkpoint info "$checkpoint" >/dev/null || fail "no checkpoint at '$checkpoint'"
[[ -s $(sed -n 's/^metrics  *//p' out) ]] || fail "no metrics where the last lines say"
