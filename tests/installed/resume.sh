#!/usr/bin/env bash
# resume.sh CLASSIFIER: a run of apps/examples/classifier.cpp that was resumed ends with the bytes of one that was not,
# and another number of ranks continues it with the same losses.
set -euo pipefail
classifier=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch"/{whole,resumed,other}

cd "$scratch/whole"
"$classifier" 2 40 >losses
cd "$scratch/resumed"
"$classifier" 2 20 >losses
[[ $(wc -l <losses) == 2 ]]
"$classifier" 2 40 >>losses
cd "$scratch/other"
"$classifier" 1 20 >losses
"$classifier" 3 40 >>losses

cd "$scratch"
[[ $(wc -l <whole/losses) == 4 ]]
diff whole/losses resumed/losses
for file in whole/checkpoints/step-00000040/rank-*.safetensors; do
  cmp "$file" "resumed${file#whole}"
done
# The losses have six decimals; sums over other numbers of ranks round in another order.
paste whole/losses other/losses | awk '{ d = $4 - $8; if (d < -2e-5 || d > 2e-5) exit 1 }'
