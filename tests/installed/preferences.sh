#!/usr/bin/env bash
# preferences.sh TESSERA DPO_LORA ANSWERS: programs that use the library's runs and texts. A folder
# of transformers is trained by preferences with low-rank updates on 4 ranks, one of which dies; the
# run continues; its checkpoint answers.
set -euo pipefail
tessera=$1 dpo_lora=$2 answers=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

for word in one two three four five six seven eight; do
  printf 'the %s of the day and the %s of the night\n' "$word" "$word"
done >words.txt
cat words.txt words.txt words.txt words.txt words.txt words.txt words.txt words.txt >text.txt
cat >base.toml <<'END'
[model]
dim = 32
layers = 2
heads = 4
kv_heads = 2
ffn_dim = 64
[data]
text = ["text.txt"]
seq_len = 64
validation = 0
[train]
steps = 10
batch = 4
[log]
metrics = ""
[checkpoint]
folder = "base"
END
"$tessera" train base.toml >/dev/null
"$tessera" checkpoint export base/step-00000010 --to model --no-tokenizer >/dev/null
i=0
while [ $i -lt 16 ]; do
  printf '{"prompt": "the day", "chosen": " is bright %s", "rejected": " is dark %s"}\n' $i $i
  i=$((i + 1))
done >preferences.jsonl

# What a config could not say is refused by the field.
if "$dpo_lora" model preferences.jsonl bad -3 2>error.txt; then
  echo "steps of -3 were taken"; exit 1
fi
grep -q '^error: train.steps: expected an integer at least 1, got -3$' error.txt || { cat error.txt; exit 1; }
if "$dpo_lora" nowhere preferences.jsonl bad 2>error.txt; then
  echo "a folder that is not there was taken"; exit 1
fi
grep -q '^error: model.from: ' error.txt || { cat error.txt; exit 1; }

# A rank that dies is started again.
"$dpo_lora" model preferences.jsonl out 40 >out.txt 2>&1 &
run=$!
n=0
until grep -q '^step ' out.txt || [ $n -gt 600 ]; do sleep 0.1; n=$((n + 1)); done
victim=$(pgrep -P $run | tail -n 1)
kill -KILL "$victim"
wait $run || { cat out.txt; exit 1; }
grep -q 'step 40/40' out.txt || { cat out.txt; exit 1; }
grep -q 'the run heals (1)' out.txt || { cat out.txt; echo "no rank was started again"; exit 1; }

# The same command continues; here nothing is left to do.
"$dpo_lora" model preferences.jsonl out 40 >again.txt 2>&1 || { cat again.txt; exit 1; }
"$answers" out/checkpoints/step-00000040 "the day" "the night" >answers.txt
[ "$(grep -c '^the ' answers.txt)" = 2 ] || { cat answers.txt; exit 1; }
echo "preferences: trained, healed, continued, answered"
