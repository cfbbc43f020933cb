// Sources: records as JSON, their lines, and files that a source of this program reads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <tessera/record_text.hpp>
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
#include "source_of_rows.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::sources;
using Catch::Contains;

namespace {

std::string content(const std::string& path) {
  const data::DataFile file = data::DataFile::content_of(path);
  std::string bytes(file.size(), '\0');
  data::DataFile::Handle(file).read(file, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::shared_ptr<const data::ExampleMaker> maker() {
  return std::make_shared<const data::ExampleMaker>(small_tokenizer(), nullptr,
                                                    data::TrainOn::answers);
}

std::string pairs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += Json{{"prompt", "number " + std::to_string(i)}, {"completion", " " + std::to_string(i)}}
                .dump() +
            "\n";
  }
  return text;
}

/// Any value, and how it is written.
Json random_value(std::mt19937& random, RecordText& to, int depth) {
  const auto text = [&] {
    std::string all;
    for (unsigned i = random() % 40; i > 0; --i) {
      static const std::vector<std::string> parts = {"a", "\"", "\\", "\n",   "\x01", "\x1f", " ",
                                                     "é", "文", "🙂", "\x7f", "/",    "\t"};
      all += parts[random() % parts.size()];
    }
    return all;
  };
  const unsigned kind = random() % (depth > 3 ? 6 : 8);
  if (kind == 0) {
    to.null();
    return nullptr;
  }
  if (kind == 1) {
    const bool value = random() % 2 == 0;
    to.truth(value);
    return value;
  }
  if (kind == 2) {
    const auto value = static_cast<std::int64_t>(std::uint64_t{random()} << 32U | random());
    to.number(value);
    return value;
  }
  if (kind == 3) {
    const std::uint64_t value = std::uint64_t{random()} << 32U | random();
    to.number(value);
    return value;
  }
  if (kind == 4) {
    const double value =
        std::ldexp(static_cast<double>(random()) - 2e9, static_cast<int>(random() % 200) - 100);
    to.number(value);
    return value;
  }
  if (kind == 5) {
    const std::string value = text();
    to.text(value);
    return value;
  }
  Json all = kind == 6 ? Json::array() : Json::object();
  kind == 6 ? to.open_list() : to.open_object();
  for (unsigned i = random() % 5; i > 0; --i) {
    if (kind == 6) {
      all.push_back(random_value(random, to, depth + 1));
    } else {
      const std::string name = std::to_string(i) + text();
      to.name(name);
      all[name] = random_value(random, to, depth + 1);
    }
  }
  kind == 6 ? to.close_list() : to.close_object();
  return all;
}

}  // namespace

TEST_CASE("a record is the JSON of its values, in one line") {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    RecordText record(text);
    const Json expected = random_value(random, record, 0);
    INFO(text);
    REQUIRE(Json::parse(text) == expected);
    REQUIRE(text.find('\n') == std::string::npos);
  }
  std::string text;
  RecordText record(text);
  record.number(2.0);
  CHECK(text == "2.0");
  CHECK_THROWS_AS(record.number(std::numeric_limits<double>::infinity()), std::domain_error);
  CHECK_THROWS_AS(record.number(std::nan("")), std::domain_error);
}

TEST_CASE("a control character is escaped wherever it is in a text") {
  for (std::size_t size = 1; size < 20; ++size) {
    for (std::size_t at = 0; at < size; ++at) {
      for (int c = 0; c < 256; ++c) {
        std::string value(size, 'x');
        value[at] = static_cast<char>(c);
        std::string text;
        RecordText(text).text(value);
        if (c < 128) {
          REQUIRE(Json::parse(text) == value);
        } else {
          REQUIRE(text == "\"" + value + "\"");
        }
      }
    }
  }
}

TEST_CASE("records come as lines in pieces of any size") {
  const SourceFolder folder;
  const std::string lines = pairs(40);
  const std::string path = folder.write("a.rows", lines);
  for (const std::size_t size : {1, 2, 7, 100, 5000}) {
    const std::vector<std::string> needed = {"messages"};
    RecordLines read(path, "rows", needed);
    std::string all;
    std::vector<std::byte> piece(size);
    for (std::size_t count = size; count == size;) {
      count = read.read(piece);
      all.append(reinterpret_cast<const char*>(piece.data()), count);
    }
    CHECK(all == lines);
    CHECK(read.records() == 40);
  }
}

TEST_CASE("which source reads a file is said by its ending") {
  const SourceFolder folder;
  CHECK(source_of("a/b.rows") == "rows");
  CHECK(source_of("B.ROWS") == "rows");
  CHECK(source_of("a.rows/b") == "");
  CHECK(source_of(".rows") == "");
  CHECK(source_of("a.rows.gz") == "");
  CHECK(source_of("a.jsonl") == "");
  CHECK(source_of("rows") == "");
  CHECK_THAT(missing_source("data/a.Parquet"),
             Contains("'.parquet'") && Contains("./dev setup arrow"));
  CHECK_THAT(missing_source("a.arrow"), Contains("./dev setup arrow"));
  CHECK(missing_source("a.rows") == "");
  const std::string path = folder.write("a.parquet", "PAR1");
  CHECK_THAT(error_of([&] { content(path); }), Contains(path + ": no plugin reads files"));
}

TEST_CASE("documents of a source are those of its lines, with their numbers") {
  const SourceFolder folder;
  const std::vector<std::string> rows = {folder.write("a.rows", pairs(50)),
                                         folder.write("b.rows", pairs(3))};
  const std::vector<std::string> lines = {folder.write("a.jsonl", pairs(50)),
                                          folder.write("b.jsonl", pairs(3))};
  const data::Documents own(rows, maker(), {.longest = 100});
  const data::Documents expected(lines, maker(), {.longest = 100});
  REQUIRE(own.size() == 53);
  for (std::int64_t i = 52; i >= 0; --i) {
    CHECK(own.read(i).ids == expected.read(i).ids);
  }
  CHECK(own.where(51) == rows[1] + ":2");
  CHECK(own.content_hash() == expected.content_hash());
  const std::string bad = folder.write("bad.rows", pairs(2) + "{broken\n" + pairs(1));
  CHECK_THAT(error_of([&] { data::Documents(std::vector{bad}, maker(), {.longest = 100}); }),
             Contains(bad + ":3: it is not JSON"));
  const data::Documents rest(std::vector{bad}, maker(), {.longest = 100, .skip_bad = true});
  CHECK(rest.size() == 3);
  CHECK(rest.counts().bad == 1);
  CHECK_THAT(rest.counts().first_bad, Contains(bad + ":3: it is not JSON"));
}

TEST_CASE("a source reads a file once, until it changes") {
  const SourceFolder folder;
  const std::string path = folder.write("a.rows", pairs(10));
  CHECK(content(path) == pairs(10));
  CHECK(content(path) == pairs(10));
  CHECK(behaviour.opened == 1);
  folder.write("a.rows", pairs(11));
  CHECK(content(path) == pairs(11));
  CHECK(behaviour.opened == 2);
}

TEST_CASE("a file that changes while its source reads it is an error") {
  const SourceFolder folder;
  const std::string path = folder.write("a.rows", pairs(10));
  behaviour.while_read = [&] { folder.write("a.rows", pairs(12)); };
  // Before a byte of it is used.
  CHECK_THAT(error_of([&] { data::DataFile::content_of(path); }),
             Contains(path + ": the file was modified"));
  behaviour.while_read = [] {};
  CHECK(content(path) == pairs(12));
}

TEST_CASE("what a source does wrong is an error of its file") {
  const SourceFolder folder;
  const auto error = [&](const std::string& text) {
    const std::string path = folder.write("a.rows", text);
    const std::string all = error_of([&] { content(path); });
    CHECK_THAT(all, Contains(path + ": "));
    return all;
  };
  CHECK_THAT(error("{}\ntwo lines\n"), Contains("record 2: the plugin gave more than one line"));
  CHECK_THAT(error("throws\n"), Contains("record 1: it went wrong"));
  CHECK_THAT(error("{}\n{}\nlong\n"), Contains("record 3: it is too long"));
  const std::string path = folder.write("a.nobody", "x");
  CHECK_THAT(error_of([&] { content(path); }), Contains("source 'nobody'"));
}

TEST_CASE("a file of records is no text") {
  const SourceFolder folder;
  const std::vector<std::string> files = {folder.write("a.rows", pairs(3))};
  CHECK_THAT(error_of([&] { data::EncodedText::from_files(files, maker()); }),
             Contains(files[0] + ": is a file of records") && Contains("data.jsonl"));
  CHECK_THAT(error_of([&] { data::Tokens::from_bytes(files); }), Contains("is a file of records"));
}
