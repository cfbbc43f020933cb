// Files of records among those of a run: which are taken of a folder, and what those of validation
// are.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.plugin;
import tessera.sources;
import tessera.data;
import tessera.runs;

#include "source_of_rows.hpp"

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

TEST_CASE("of a folder with files of a source only records are taken, and others are named") {
  const SourceFolder folder;
  for (const char* const name : {"set/b.rows", "set/a.rows", "set/more/c.jsonl"}) {
    folder.write(name, "{}\n");
  }
  folder.write("set/dataset_info.json", "{}");
  folder.write("set/README.md", "text");
  const runs::TextFiles found = runs::find_text_files(std::vector{folder / "set"});
  std::vector<std::string> names;
  for (const std::filesystem::path& file : found.files) {
    names.push_back(file.filename().string());
  }
  CHECK(names == std::vector<std::string>{"a.rows", "b.rows", "c.jsonl"});
  CHECK_THAT(found.left_out,
             Contains("2 other files (") && Contains("README.md") && Contains("dataset_info.json"));
  // A folder of texts keeps all of its files.
  folder.write("texts/a.txt", "a");
  folder.write("texts/b.json", "{}");
  CHECK(runs::find_text_files(std::vector{folder / "texts"}).files.size() == 2);
}

TEST_CASE("a file whose plugin this machine does not have is refused with what to do") {
  const SourceFolder folder;
  const std::string file = folder.write("a.parquet", std::string("PAR1\0\0", 6));
  CHECK_THAT(error_of([&] { runs::find_text_files(std::vector{file}); }),
             Contains(file + ": no plugin reads files that end in '.parquet'") &&
                 Contains("./dev setup arrow"));
}

TEST_CASE("what a file of validation has is said by its name, compressed or not") {
  const SourceFolder folder;
  runs::RunSpec spec;
  spec.data.validation_files = {"a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.rows", "e.parquet",
                                "f.txt",   "g.txt.gz",   "h.npy",       "i"};
  std::map<runs::SourceConfig::Kind, std::string> files;
  for (const runs::SourceConfig& source : runs::validation_sources(spec)) {
    for (const std::string& path : source.paths) {
      files[source.kind] += path + " ";
    }
  }
  using Kind = runs::SourceConfig::Kind;
  CHECK(files[Kind::jsonl] == "a.jsonl b.jsonl.gz c.jsonl.zst d.rows e.parquet ");
  CHECK(files[Kind::text] == "f.txt g.txt.gz i ");
  CHECK(files[Kind::tokens] == "h.npy ");
}
