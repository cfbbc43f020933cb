// Files of Parquet and Arrow that pyarrow has written (tests/reference/tables.py), and damaged
// ones.
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.plugin;
import tessera.tokenize;
import tessera.sources;
import tessera.data;

#include "../data/support.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::sources;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

const std::string tables = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/tables/";

class TableFolder : public Folder {
 public:
  TableFolder() { setenv("TESSERA_DATA_CACHE", (*this / "cache").c_str(), 1); }
};

std::string content(const std::string& path) {
  const data::DataFile file = data::DataFile::content_of(path);
  std::string bytes(file.size(), '\0');
  data::DataFile::Handle(file).read(file, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// All of a file's lines, without the cache.
std::string records_of(const std::string& path) {
  RecordLines lines(path, source_of(path), data::RecordForms::names());
  std::string all;
  std::vector<std::byte> block(std::size_t{64} << 10);
  for (std::size_t count = lines.read(block); count > 0; count = lines.read(block)) {
    all.append(reinterpret_cast<const char*>(block.data()), count);
  }
  return all;
}

/// Reads a file of these bytes, which must not end the process; whether it is an error, which names
/// the file.
bool is_refused(const Folder& folder, const std::string& name, std::string_view bytes) {
  const std::string path = folder.write(name, bytes);
  const std::string error = error_of([&] { records_of(path); });
  if (error != "no error") {
    INFO(error);
    REQUIRE(error.starts_with(path + ": "));
    REQUIRE(error.find('\n') == std::string::npos);
  }
  return error != "no error";
}

/// The files of a stored table, each with the same records.
std::vector<std::string> forms_of(const std::string& table) {
  return {tables + table + ".parquet", tables + table + ".arrow", tables + table + "_stream.arrow"};
}

std::shared_ptr<const data::ExampleMaker> maker() {
  return std::make_shared<const data::ExampleMaker>(
      small_tokenizer(), chat_template("chatml.jinja"), data::TrainOn::answers);
}

std::ptrdiff_t threads_here() {
  return std::distance(fs::directory_iterator("/proc/self/task"), {});
}

void check_truncations(std::size_t step) {
  const TableFolder folder;
  for (const std::string& path : forms_of("chats")) {
    const std::string whole = read_file(path);
    const std::string name = "cut" + fs::path(path).extension().string();
    for (std::size_t size = 0; size < whole.size(); ++size) {
      if (size % step == 0 || whole.size() - size < 40) {
        INFO(path << ", " << size << " bytes");
        REQUIRE(is_refused(folder, name, std::string_view(whole).substr(0, size)));
      }
    }
    CHECK_FALSE(is_refused(folder, name, whole));
  }
}

void check_changes(int count) {
  const TableFolder folder;
  std::mt19937 random(11);
  for (const char* const table : {"chats", "types"}) {
    for (const std::string& path : forms_of(table)) {
      const std::string whole = read_file(path);
      const std::string name = "changed" + fs::path(path).extension().string();
      int refused = 0;
      for (int i = 0; i < count; ++i) {
        std::string bytes = whole;
        for (unsigned k = random() % 4 + 1; k > 0; --k) {
          // Half of them in the end, which says where everything is.
          const std::size_t at = random() % 2 == 0
                                     ? random() % bytes.size()
                                     : bytes.size() - 1 - random() % (bytes.size() / 4);
          bytes[at] = random() % 2 == 0 ? static_cast<char>(random())
                                        : static_cast<char>(bytes[at] ^ (1U << (random() % 8)));
        }
        refused += is_refused(folder, name, bytes) ? 1 : 0;
      }
      INFO(path);
      CHECK(refused > count / 2);
    }
  }
}

}  // namespace

TEST_CASE("rows of every type are the records that pyarrow and Python's JSON make of them") {
  for (const char* const table : {"types", "chats"}) {
    const std::string expected = read_file(tables + table + ".jsonl");
    for (const std::string& path : forms_of(table)) {
      INFO(path);
      CHECK(records_of(path) == expected);
    }
  }
}

TEST_CASE("documents of Parquet and Arrow are those of the JSON lines, with the same hash") {
  const TableFolder folder;
  const data::Documents expected(std::vector{tables + "chats.jsonl"}, maker(), {.longest = 200});
  REQUIRE(expected.size() == 60);
  for (const std::string& path : forms_of("chats")) {
    INFO(path);
    const data::Documents own(std::vector{path}, maker(), {.longest = 200});
    REQUIRE(own.size() == 60);
    for (std::int64_t i = 59; i >= 0; --i) {
      const data::Example example = own.read(i);
      CHECK(example.ids == expected.read(i).ids);
      CHECK(example.trained == expected.read(i).trained);
    }
    CHECK(own.where(41) == path + ":42");
    CHECK(own.content_hash() == expected.content_hash());
  }
}

TEST_CASE("a file of Parquet is unpacked once") {
  const TableFolder folder;
  const std::string path = folder.write("a.parquet", read_file(tables + "chats.parquet"));
  const std::string expected = read_file(tables + "chats.jsonl");
  CHECK(content(path) == expected);
  const auto kept = [&] {
    return std::ranges::count_if(fs::directory_iterator(folder / "cache"), [](const auto& entry) {
      return entry.path().extension() == ".blocks";
    });
  };
  CHECK(kept() == 1);
  CHECK(content(path) == expected);
  CHECK(kept() == 1);
}

TEST_CASE("reading Parquet and Arrow starts no threads") {
  records_of(tables + "chats.parquet");  // loads the library, whose allocator has one
  const std::ptrdiff_t before = threads_here();
  for (const char* const table : {"types", "chats"}) {
    for (const std::string& path : forms_of(table)) {
      records_of(path);
    }
  }
  CHECK(threads_here() == before);
}

TEST_CASE("a file of Parquet or Arrow that was cut is an error", "[hostile]") {
  check_truncations(61);
}

TEST_CASE("every cut of files of Parquet and Arrow is an error", "[.long]") {
  check_truncations(1);
}

TEST_CASE("files of Parquet and Arrow with other bytes are errors, or have records") {
  check_changes(150);
}

TEST_CASE("many files of Parquet and Arrow with other bytes", "[.long]") { check_changes(10000); }

TEST_CASE("a broken row group is named, and what is no file of the format") {
  const TableFolder folder;
  std::string bytes = read_file(tables + "chats.parquet");
  // The pages of the third row group, where their headers are.
  const std::size_t third = bytes.find("Count from 18");
  REQUIRE(third != std::string::npos);
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(third) - 60, 120, '\xff');
  const std::string broken = folder.write("broken.parquet", bytes);
  CHECK_THAT(error_of([&] { records_of(broken); }), Contains(broken + ": row group 3: "));
  const auto error = [&](const std::string& name, const std::string& text) {
    const std::string path = folder.write(name, text);
    const std::string all = error_of([&] { records_of(path); });
    CHECK_THAT(all, Contains(path + ": "));
    return all;
  };
  CHECK_THAT(error("lines.parquet", read_file(tables + "chats.jsonl")), Contains("magic bytes"));
  CHECK_THAT(error("old.feather", "FEA1" + std::string(100, ' ')), Contains("version 1"));
  CHECK(error("empty.parquet", "") != "no error");
  CHECK(error("empty.arrow", "") != "no error");
  CHECK_THAT(error_of([&] { records_of(folder / "none.parquet"); }), Contains("cannot be read: "));
  fs::create_directory(folder / "folder.arrow");
  CHECK_THAT(error_of([&] { records_of(folder / "folder.arrow"); }),
             Contains("is not a regular file"));
}

TEST_CASE("places outside a dictionary are found before they are used") {
  const std::string path = tables + "outside.parquet";
  CHECK_THAT(error_of([&] { records_of(path); }),
             Contains(path + ": row group 4: ") && Contains("out of bounds"));
}

TEST_CASE("a footer that says another number of rows is an error") {
  const TableFolder folder;
  const std::string path = folder.write("a.parquet", read_file(tables + "lies.parquet"));
  CHECK_THAT(
      error_of([&] { records_of(path); }),
      Contains(path + ": its row groups have another number") && Contains("expected 60, got 59"));
}

TEST_CASE("a column that records need and cannot have is named, and others are left out") {
  const std::string path = tables + "refused.parquet";
  CHECK_THAT(error_of([&] { records_of(path); }),
             Contains(path + ": the column 'image' has the type binary"));
  RecordLines lines(path, "parquet");  // nothing needs it
  std::vector<std::byte> bytes(100);
  CHECK(lines.read(bytes) == std::string_view("{\"text\":\"a\"}\n").size());
  CHECK_THAT(error_of([&] { records_of(tables + "unreadable.parquet"); }),
             Contains("there is no column that a record can have"));
}

TEST_CASE("a small file that says terabytes takes bounded memory", "[.long]") {
  const TableFolder folder;
  const std::string path = tables + "large.parquet";
  REQUIRE(fs::file_size(path) < 100'000);
  CHECK_THAT(error_of([&] { records_of(path); }), Contains(path + ": row group 1: "));
  struct rusage used{};
  REQUIRE(::getrusage(RUSAGE_SELF, &used) == 0);
  CHECK(used.ru_maxrss < 2'500'000);  // KiB
}
