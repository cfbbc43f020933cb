#!/usr/bin/env bash
# fingerprint.sh CMAKE SCRIPT: the fingerprint of interfaces follows what they mean, not their comments and white space.
set -euo pipefail
cmake=$1 script=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
echo a.cppm >list

# of TEXT: the fingerprint of an interface with this text.
of() {
  printf '%s' "$1" >a.cppm
  "$cmake" -D OUTPUT="$scratch/out.h" -D VERSION=1.2.3 -D LIST="$scratch/list" -D ROOT="$scratch" -P "$script"
  sed -n 's/.*FINGERPRINT "\(.*\)"/\1/p' out.h
}

code='export module a;

/// The sum of a; and b [1].
int sum(int a, int b);  // errors: none
int half(int a) { return a / 2; }
const char* name() { return "http://a"; }  // kept
'
first=$(of "$code")
[[ ${#first} == 64 ]] || { echo "no fingerprint: '$first'"; exit 1; }

same() { [[ $(of "$1") == "$first" ]] || { echo "differs, but must not: $2"; exit 1; }; }
other() { [[ $(of "$1") != "$first" ]] || { echo "is the same, but must not: $2"; exit 1; }; }
same "$code" "the same text"
same "${code//The sum of a; and b [1]./Adds both; see [2].}" "a corrected comment"
same "${code//  \/\/ errors: none/}" "a comment at the end of a line that is gone"
same "${code//int sum(int a, int b);/int sum(int a,
        int b);}" "a line that is broken"
other "${code//int b/long b}" "another type"
other "${code//a \/ 2/a \/ 3}" "another number after a division"
other "${code//int a, int b/int b, int a}" "another order"
other "${code//http:\/\/a/http:\/\/b}" "another text with two slashes"
printf 'b.cppm\na.cppm\n' >list
echo >b.cppm
other "$code" "a further interface"
