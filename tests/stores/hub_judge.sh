#!/usr/bin/env bash
# hub_judge.sh TEST SOURCES: huggingface_hub, which speaks the hub's protocol, with the hub of these tests. What it
# reads must be what the server has, so the server is a judge of the store. Exits with 77 where PyPI cannot be had.
set -euo pipefail
program=$1 sources=$2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/stores-judge

skip() { echo "skipped: $1"; exit 77; }

python=${TESSERA_HUB_PYTHON:-$cache/venv/bin/python}
if ! "$python" -c 'import huggingface_hub' 2>/dev/null; then
  mkdir -p "$cache"
  python3 -m venv "$cache/venv" || skip "python3 has no venv"
  "$cache/venv/bin/pip" install -q huggingface_hub || skip "PyPI's huggingface_hub"
  python=$cache/venv/bin/python
fi

folder=$(mktemp -d)
trap 'touch "$folder/end"; wait; rm -rf "$folder"' EXIT
HUB_FOLDER=$folder "$program" "[.server]" &
for _ in $(seq 100); do
  [[ -s $folder/url ]] && break
  sleep 0.1
done
HF_ENDPOINT=$(cat "$folder/url") HF_HOME=$folder/home "$python" "$sources/tests/stores/hub_judge.py" "$folder"
