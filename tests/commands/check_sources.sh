#!/usr/bin/env bash
# Adds one fault at a time to a small tree and expects cmake/check_sources.pl to report it.
#
#   check_sources.sh REPOSITORY
set -euo pipefail
check=$1/cmake/check_sources.pl
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"

sound_tree() {
  rm -rf ./*
  mkdir -p modules/low modules/high plugins/style docs
  printf 'add_subdirectory(low)\nadd_subdirectory(high)\n' >modules/CMakeLists.txt
  echo 'tessera_module(low INTERFACE low.cppm a.cppm)' >modules/low/CMakeLists.txt
  echo 'tessera_module(high INTERFACE high.cppm b.cppm SOURCES b.cpp IMPORTS low)' >modules/high/CMakeLists.txt
  printf 'export module tessera.low;\nexport import :a;  // a thing\n' >modules/low/low.cppm
  printf 'export module tessera.low:a;\n' >modules/low/a.cppm
  printf 'export module tessera.high;\nexport import :b;  // b thing\n' >modules/high/high.cppm
  printf 'export module tessera.high:b;\nimport tessera.low;\n' >modules/high/b.cppm
  printf 'module;\n#include <string>\nmodule tessera.high;\n' >modules/high/b.cpp
  echo 'add_library(style style.cpp)' >plugins/style/CMakeLists.txt
  printf '#include <string>\nimport tessera.high;\n' >plugins/style/style.cpp
  mkdir -p apps/suite apps/tessera/below apps/tessera/above
  printf 'add_subdirectory(suite)\nadd_subdirectory(tessera)\n' >apps/CMakeLists.txt
  printf 'add_subdirectory(below)\nadd_subdirectory(above)\nadd_executable(program main.cpp)\n' >apps/tessera/CMakeLists.txt
  echo 'tessera_module(suite TARGET suite INTERFACE suite.cppm)' >apps/suite/CMakeLists.txt
  echo 'tessera_module(app.below TARGET app INTERFACE below.cppm)' >apps/tessera/below/CMakeLists.txt
  echo 'tessera_module(app.above TARGET app INTERFACE above.cppm SOURCES a.cpp IMPORTS low suite app.below)' >apps/tessera/above/CMakeLists.txt
  echo 'export module tessera.suite;' >apps/suite/suite.cppm
  echo 'export module tessera.app.below;' >apps/tessera/below/below.cppm
  echo 'export module tessera.app.above;' >apps/tessera/above/above.cppm
  printf 'module tessera.app.above;\nimport tessera.low;\nimport tessera.suite;\nimport tessera.app.below;\n' >apps/tessera/above/a.cpp
  echo 'import tessera.app.above;' >apps/tessera/main.cpp
  printf '# One\nSee [two](two.md#the-second).\n' >docs/one.md
  printf '## The second\n' >docs/two.md
}

failures=0
expect() {  # WHAT FINDING: the planted fault is reported with these words
  local output
  if output=$(perl "$check" . 2>&1) || [[ $output != *"$2"* ]]; then
    printf 'not found: %s (expected "%s")\n%s\n' "$1" "$2" "$output"
    failures=$((failures + 1))
  fi
  sound_tree
}

sound_tree
perl "$check" . || { echo 'a sound tree has findings'; exit 1; }

echo 'import tessera.high;' >>modules/low/a.cppm
expect 'an import upwards' 'high is not in the IMPORTS of modules/low'
sed -i 's/a.cppm/a.cppm IMPORTS high/' modules/low/CMakeLists.txt
expect 'an upward import that is stated' 'low comes before it'
sed -i 's/IMPORTS low/IMPORTS low lower/' modules/high/CMakeLists.txt
expect 'an unknown module' 'no such module'
sed -i '/import/d' modules/high/b.cppm
expect 'an import that is stated and unused' 'nothing in modules/high imports it'
echo 'import tessera.app.above;' >>apps/tessera/below/below.cppm
expect 'an import upwards in the program' 'app.above is not in the IMPORTS of apps/tessera/below'
sed -i 's/below.cppm/below.cppm IMPORTS app.above/' apps/tessera/below/CMakeLists.txt
expect 'an upward import of the program that is stated' 'app.below comes before it'
sed -i 's/suite.cppm/suite.cppm IMPORTS app.below/' apps/suite/CMakeLists.txt
expect 'an import of the program from below it' 'suite comes before it'
sed -i 's/low.cppm/low.cppm IMPORTS suite/' modules/low/CMakeLists.txt
expect 'an import of the library from what is above it' 'low comes before it'
sed -i '/import tessera.suite/d' apps/tessera/above/a.cpp
expect 'an import of the program that is stated and unused' 'nothing in apps/tessera/above imports it'
printf 'export namespace tessera {\n/// One.\nint one();\n\nint two(int x,\n        int y);\n}\n' >>modules/low/a.cppm
expect 'an exported name without a comment' 'modules/low/a.cppm:6: an exported name has no comment: int two'
printf 'export namespace tessera {\n/// Some.\nint one();\nint two();\nstruct A;\nint three();  // it\n}\n' >>modules/low/a.cppm
perl "$check" . || { echo 'exported names with comments have findings'; exit 1; }
sound_tree
echo 'int x;' >>apps/tessera/below/below.cppm
expect 'a facade of the program with code' 'a facade must contain only'
printf 'module;\n#include <vector>\nexport module tessera.app.below:b;\n' >apps/tessera/below/b.cppm
expect 'a standard header in an interface of the program' 'an interface must import the standard library'
mkdir apps/tessera/odd && echo 'export module tessera.app.odd;' >apps/tessera/odd/odd.cppm
expect 'a module of the program that the build does not know' 'no add_subdirectory(odd)'
echo 'import tessera.app.above;' >>plugins/style/style.cpp
expect 'a plugin that imports the program' 'no such public module'
echo 'void f() { run.config.graph.passes.clear(); }' >>apps/tessera/above/a.cpp
expect 'a part of a config that is emptied' 'a config is constant'
echo 'void f() { config.graph.executor = "planned"; }' >>apps/tessera/above/a.cpp
expect 'a value of a config that is changed' 'a config is constant'
echo 'import tessera.secret;' >>plugins/style/style.cpp
expect 'a plugin that imports what is not public' 'no such public module'
echo '#include "../../modules/high/b.hpp"' >plugins/style/style.cpp
expect 'a plugin that includes a private header' 'may use only the public modules'
printf 'import tessera.high;\n#include <string>\n' >plugins/style/style.cpp
expect 'an include after an import' 'an #include after an import'
mkdir modules/odd && echo 'export module tessera.odd;' >modules/odd/odd.cppm
expect 'a module that the build does not know' 'no add_subdirectory(odd)'
mkdir modules/high/kernels
echo 'import tessera.low;' >modules/high/kernels/b.hpp
expect 'a kernel header that imports' 'must not import'
mkdir modules/high/functions
printf '#include <cmath>\n' >modules/high/functions/b.hpp
expect 'a function of elements that needs the host' 'a function of elements includes math.hpp'
echo 'int x;' >>modules/low/low.cppm
expect 'a facade with code' 'a facade must contain only'
echo 'namespace {' >>modules/low/a.cppm
expect 'an anonymous namespace in an interface' 'must not contain an anonymous namespace'
sed -i 's/^export //' modules/low/a.cppm
expect 'an internal partition among the interfaces' 'list it under INTERNAL'
sed -i 's/a.cppm/INTERNAL a.cppm/' modules/low/CMakeLists.txt
expect 'an interface among the internal partitions' 'listed under INTERNAL'
echo 'int forgotten;' >modules/low/c.cpp
expect 'a source that nothing builds' 'no modules/low/CMakeLists.txt builds it'
echo 'CHECK_THAT(x, Catch::ContainsSubstring("y"));' >>modules/high/b.cpp
expect 'a name of one version of Catch2' 'not in both versions'
echo '#include <catch2/catch_all.hpp>' >modules/high/b.cpp
expect 'the header of one version of Catch2' 'has both versions'
mkdir -p tests/support tests/low
echo 'add_test(low.cpp)' >tests/low/CMakeLists.txt
printf 'class Folder {\n};\nbool contains(const std::string& text, const std::string& part) {\n' >tests/support/folder.hpp
printf 'class Folder;\nclass KeyFolder : public Folder {\n  bool contains(int x) const {\n};\n  CHECK(contains(error_of([] {\n' >tests/low/low.cpp
perl "$check" . || { echo 'uses of what tests/support has are findings'; exit 1; }
for line in 'class Folder {' 'std::string error_of(const std::function<void()>& f) {' \
  'inline bool contains(const std::string& text, const std::string& part) {' 'void on_ranks(int ranks, F f) {'; do
  mkdir -p tests/low
  echo 'add_test(low.cpp)' >tests/low/CMakeLists.txt
  echo "$line" >tests/low/low.cpp
  expect "a copy of what tests/support has: $line" 'tests/support has it'
done
mkdir -p modules/low/inner modules/high/inner modules/high/low
touch modules/low/inner/c.hpp modules/high/inner/c.hpp modules/low/inner/low.cppm modules/high/low/low.cppm
sed -i 's/low.cppm/low.cppm low/' modules/high/CMakeLists.txt modules/low/CMakeLists.txt
perl "$check" . || { echo 'two files of one name, and a facade beside them, have findings'; exit 1; }
touch modules/high/c.hpp
expect 'a third file of one name' 'modules/low/inner/c.hpp:1: a third file of this name (after modules/high/c.hpp and modules/high/inner/c.hpp)'
state='| [high/b.cpp](../../modules/high/b.cpp) | a thing | a reason |'
mkdir -p docs/design
printf 'thread_local int thing;\nint other;  // thread_local\n' >>modules/high/b.cpp
echo "$state" >docs/design/thread-local.md
perl "$check" . || { echo 'a thread_local that is listed has findings'; exit 1; }
echo 'thread_local int second;' >>modules/high/b.cpp
expect 'a thread_local that is not listed' 'modules/high/b.cpp:6: thread_local: docs/design/thread-local.md has no row'
mkdir -p docs/design
echo "$state" >docs/design/thread-local.md
expect 'a row for a thread_local that is gone' 'docs/design/thread-local.md:1: modules/high/b.cpp has no thread_local'
echo "// TO""DO" >>modules/low/a.cppm
expect 'unfinished work' 'finish it'
echo 'bool f() { return std::string(error.what()).starts_with("disk"); }' >>modules/high/b.cpp
expect "a decision by an error's text" 'use its fields()'
printf '| term | a thing | `gone` |\n' >docs/glossary.md
expect 'a name in the glossary that is gone' 'no interface has this name'
seq 151 >docs/long.md
expect 'a page that is too long' 'docs/long.md:151: a page has at most 150 lines (this one 151)'
printf 'extra:\n  long_pages:\n    - long.md  # looked up\nnav:\n  - Home: one.md\n  - Part:\n' >mkdocs.yml
seq -f "      - 'Page: %.0f': page.md" 10 >>mkdocs.yml
seq 151 >docs/long.md
perl "$check" . || { echo 'a long page that is listed, and ten entries of a section, have findings'; exit 1; }
echo '      - Page 11: page11.md' >>mkdocs.yml
expect 'a section of the navigation with eleven entries' "mkdocs.yml:17: 'Part' has more than ten entries"
printf 'extra:\n  long_pages:\n    - one.md\n' >mkdocs.yml
expect 'a short page among the long ones' 'docs/one.md has 2 lines (the most is 150): remove it'
printf 'extra:\n  long_pages:\n    - gone.md\n' >mkdocs.yml
expect 'a long page that is not there' 'there is no docs/gone.md'
rm docs/two.md
expect 'a dead link' 'is broken'
echo '# Else' >docs/two.md
expect 'a link to a heading that is not there' 'no heading #the-second'
mkdir -p docs/design
echo '| `tessera::high` | high |' >docs/design/modules.md
printf 'export namespace tessera::other {\n' >>modules/high/b.cppm
expect 'a namespace of another area' 'modules/high/b.cppm:3: namespace tessera::other: docs/design/modules.md has another one'
mkdir -p docs/design
echo '| `tessera::high` | high |' >docs/design/modules.md
expect 'a namespace that nothing has' 'high exports nothing in the namespace tessera::high'

((failures == 0))
