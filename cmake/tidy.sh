#!/usr/bin/env bash
# Runs clang-tidy over every source of this repository that BUILD compiles. BUILD must be built, for its interfaces.
# A source without findings is not checked again until it, an interface that it imports, a header or .clang-tidy
# changes. TIDY_MINUTES limits the time: no source is started after it, and the number of sources left is printed.
#
#   cmake/tidy.sh BUILD [REVISION]     with a revision: only sources that changed since it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export build=$1 clean=$1/tidy headers left=$1/tidy.left until=$((EPOCHSECONDS + ${TIDY_MINUTES:-1000} * 60))
mkdir -p "$clean"
: >"$left"
headers=$(
  clang-tidy-19 --version
  git ls-files -z .clang-tidy '*.hpp' '*.h' | xargs -0 sha256sum
)

# tidy OBJECT SOURCE: the object's .modmap names the modules that the source sees.
tidy() {
  [[ -e $1 ]] || return 0 # of a target that is built on request only
  local modules key findings
  modules=$(grep -oE '"tessera\.[a-z0-9_.]*' "$1.modmap" 2>/dev/null | sort -u |
    sed -E 's#"tessera\.app\.#apps/tessera/#; s#"tessera\.(conformance|plugin_suite)$#apps/\1#; s#"tessera\.#modules/#' || true)
  # shellcheck disable=SC2086 # one word for each module
  key=$({ echo "$headers"; cat "$2"; [[ -z $modules ]] || find $modules -name '*.cppm' -exec sha256sum {} + | sort; } |
    sha256sum | cut -c1-32)
  [[ ! -e $clean/$key ]] || return 0
  ((EPOCHSECONDS < until)) || { echo "$2" >>"$left"; return 0; }
  if findings=$(clang-tidy-19 -p "$clean" --quiet "$2" 2>&1); then
    : >"$clean/$key"
  else
    grep -v -E '^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^\[[0-9/]+\] Processing' <<<"$findings"
    return 1
  fi
}
export -f tidy

# clang-tidy would walk through all of a precompiled header; without it, it also sees what a source forgets to include.
sed -E 's| -Xclang -include-pch -Xclang [^ ]+ -Xclang -include -Xclang [^ ]+||' "$build/compile_commands.json" \
  >"$clean/compile_commands.json"

checked=all
[[ -z ${2:-} ]] || checked=" $(git diff --name-only "$2" -- | tr '\n' ' ')"
awk -F'"' -v checked="$checked" -v ours="$PWD/" -v build="$build/" '
  $2 == "file" { source = $4 }
  $2 == "output" && index(source, ours) == 1 && index(source, ours "build/") != 1 &&
    (checked == "all" || index(checked, " " substr(source, length(ours) + 1) " ")) {
    print ($4 ~ /^\// ? "" : build) $4, source
  }
' "$build/compile_commands.json" | sort -u -k2,2 |
  xargs -r -P "$(nproc)" -n 2 bash -c 'tidy "$@"' tidy
[[ ! -s $left ]] || echo "clang-tidy: $(wc -l <"$left") sources were left out after $TIDY_MINUTES minutes"
