#!/usr/bin/env bash
# Builds the image of Containerfile from the packages of ./dev package, on the base system of their distribution, and
# trains in it on two ranks. buildah does it, with changes of the root folder only: no daemon and no registry are needed.
#
#   container.sh CODENAME FOLDER_OF_PACKAGES BASE_SYSTEM_TAR WORK_FOLDER
set -euo pipefail
export LC_ALL=C
codename=$1 packages=$(realpath "$2") base=$(realpath "$3") work=$(realpath -m "$4")
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/distributions/system.sh
source "$here/system.sh"

rm -rf --one-file-system "$work"
mkdir -p "$work/data"
trap 'rm -rf --one-file-system "$work"' EXIT
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
image() { buildah --root "$work/images" --runroot "$work/run" "$@"; }

say 'building an image from the packages'
container=$(image from scratch)
{ image add "$container" "$base" / && image commit --rm "$container" base; } >"$work/output" 2>&1 ||
  { tail -n 20 "$work/output"; die 'the base image could not be made'; }
image build --pull=never --build-arg BASE=localhost/base -f "$here/../../Containerfile" -t tessera "$packages" \
  >"$work/output" 2>&1 || { tail -n 20 "$work/output"; die 'the image could not be built'; }

for _ in 1 2 3 4; do cat /usr/share/common-licenses/GPL-3; done >"$work/data/text.txt"
cp "$here/../../configs/fully_sharded.toml" "$work/data/"
container=$(image from --pull=never localhost/tessera)
image run -v "$work/data:/work" "$container" -- tessera train fully_sharded.toml 'data.text=[text.txt]' \
  train.steps=20 log.metrics= checkpoint.folder=run >"$work/output" 2>&1 ||
  { tail -n 20 "$work/output"; die 'the image does not train'; }
[[ -s $work/data/run/step-00000020/checkpoint.json ]] || die 'the image has saved no checkpoint'
say 'the image works'
