#!/usr/bin/env bash
# Plants faults in the pages of a tiny tree and expects pages.pl to name each of them.
#
#   pages_misuse.sh REPOSITORY
set -euo pipefail
repository=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
mkdir -p docs configs apps/examples modules/a
touch configs/some.toml
cp "$repository/dev" .
printf '#!/bin/sh\necho "  train   a command"\n' >program
chmod +x program
echo 'tessera_module(a INTERFACE a.cppm IMPORTS base)' >modules/a/CMakeLists.txt
echo '| a | what it owns | base |' >docs/architecture.md
printf 'nav:\n  - A: architecture.md\n' >mkdocs.yml
printf '```sh\ntessera train x.toml && ./dev run train x.toml\n```\n<!-- check: true -->\n' >README.md

"$repository/tests/commands/pages.pl" . program . || { echo 'a sound tree has findings'; exit 1; }

printf '```sh\nls nowhere\n```\n' >docs/fails.md
printf '```sh\ntrue\n```\n<!-- check: test wrong = right -->\n' >docs/check.md
printf '<!-- not run: reason -->\n```sh\n./dev tran\ntessera trai\nls nowhere_else\n```\n' >docs/names.md
printf '<!-- long -->\n```sh\nls only_long\n```\n<!-- long -->\nwords\n' >docs/marks.md
echo '| a | what it owns | base mesh |' >docs/architecture.md
printf 'int x = 1;\n  int y = x;\n' >source.cpp
printf '<!-- code: source.cpp -->\n```cpp\n  int x = 1;\n\nint y = x;\n```\n```cpp\nint z;\n```\n' >docs/code.md
printf '<!-- code: source.cpp -->\n```cpp\nint x = 2;\n```\n' >docs/other.md
printf '```sh\necho one\n```\n<!-- prints -->\n```text\ntwo\n```\n' >docs/prints.md

failures=0
expect() {  # found|absent TEXT
  if [[ $output == *"$2"* ]]; then local seen=found; else local seen=absent; fi
  [[ $seen == "$1" ]] || { printf 'expected to be %s: %s\n%s\n' "$1" "$2" "$output"; failures=1; }
}
if output=$("$repository/tests/commands/pages.pl" . program .); then echo 'nothing failed'; exit 1; fi
expect found 'failed: the block at docs/fails.md:1: ls nowhere'
expect found 'failed: the block at docs/check.md:4: test wrong = right'
expect found "docs/names.md:2: ./dev help does not explain 'tran'"
expect found "docs/names.md:2: tessera --help does not list 'trai'"
expect absent 'nowhere_else'
expect absent 'only_long'
expect found 'docs/marks.md:6: a comment about a block must stand right before it'
expect found 'docs/code.md:7: no <!-- code: FILE --> says where'
expect absent 'docs/code.md:2'
expect found 'docs/other.md:2: these lines are not in source.cpp'
expect found 'failed: the block at docs/prints.md:5: diff'
expect found 'mkdocs.yml: the navigation has docs/code.md 0 times'
expect absent 'docs/architecture.md 0 times'
expect found "'a' imports 'base', the table says 'base mesh'"
if output=$("$repository/tests/commands/pages.pl" . program . long); then echo 'nothing failed'; exit 1; fi
expect found 'failed: the block at docs/marks.md:2: ls only_long'
((failures == 0))
