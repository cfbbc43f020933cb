#!/usr/bin/env bash
# Completes command lines of the program with the scripts that it prints, in bash; zsh and fish read theirs where they
# are installed. Also reads the manual page.
#
#   completion.sh PROGRAM
set -euo pipefail
program=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
die() { printf 'completion.sh: %s\n' "$*" >&2; exit 1; }

for shell in bash zsh fish; do "$program" completion "$shell" >"$scratch/$shell"; done
# shellcheck source=/dev/null
source "$scratch/bash"

# complete EXPECTED WORD...: the candidates for the last word.
complete_words() {
  local expected=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _tessera
  [[ ${COMPREPLY[*]} == "$expected" ]] || die "'$*' is completed by '${COMPREPLY[*]}', not by '$expected'"
}
complete_words 'graph' tessera gr
complete_words 'capture show diff draw stats roofline' tessera graph ''
complete_words '--plugin --part' tessera graph capture --p
complete_words 'first middle last update' tessera graph capture --part ''
complete_words 'gemm generate' tessera bench g
complete_words 'loss lr' tessera plot --metric l
complete_words '--dry-run' tessera train run.toml --d
complete_words '' tessera train ''          # a file
complete_words '' tessera train --plugin '' # a file
complete_words 'bash' tessera completion b
# A word that is a command's only at its place.
complete_words '' tessera train graph ''

! command -v zsh >/dev/null || zsh -n "$scratch/zsh"
if command -v fish >/dev/null; then
  [[ $(fish --no-config -c "source $scratch/fish; complete -C 'tessera graph capture --part l'" | cut -f1) == last ]] ||
    die 'fish does not complete the part of a capture'
fi

"$program" manual >"$scratch/tessera.1"
for command in $("$program" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]*\) .*/\1/p'); do
  grep -q "^\.SS tessera $command$" "$scratch/tessera.1" || die "the manual page lacks '$command'"
done
if command -v groff >/dev/null; then
  [[ -z $(groff -man -Tutf8 -ww -z "$scratch/tessera.1" 2>&1) ]] || die 'groff warns of the manual page'
fi
