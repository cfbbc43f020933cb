// Files as documents, tokens and rows.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::data;
using Catch::Contains;
using Ids = std::vector<std::int64_t>;

namespace {

std::shared_ptr<const ExampleMaker> maker() {
  return std::make_shared<const ExampleMaker>(small_tokenizer(), nullptr, TrainOn::answers);
}

std::string pair(const std::string& prompt, const std::string& completion) {
  return Json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
}

std::string documents_error(const Folder& folder, const std::string& text,
                            const DocumentOptions& options = {.longest = 100}) {
  const std::vector<std::string> files = {folder.write("a.jsonl", text)};
  return error_of([&] { Documents(files, maker(), options); });
}

/// Rows that are their own numbers.
class Numbers final : public RowSource {
 public:
  explicit Numbers(std::int64_t rows) : rows_(rows) {}
  std::int64_t rows() const override { return rows_; }
  std::int64_t trained(std::int64_t) const override { return 1; }
  std::int64_t used(std::int64_t) const override { return 1; }
  std::string where(std::int64_t) const override { return ""; }
  std::vector<RowRecord> records(std::int64_t) const override { return {}; }
  void read(std::int64_t, std::span<std::int64_t>, std::span<std::int64_t>) const override {}

 private:
  std::int64_t rows_;
};

}  // namespace

TEST_CASE("each record is a document with its line") {
  const Folder folder;
  const std::vector<std::string> files = {
      folder.write("a.jsonl", pair("one", " two") + "\n" + pair("three", " four")),
      folder.write("b.jsonl", "\r\n" + pair("five", " six"))};
  const Documents documents(files, maker(), {.longest = 100});
  REQUIRE(documents.size() == 3);
  CHECK(documents.where(1) == files[0] + ":3");
  CHECK(documents.where(2) == files[1] + ":2");
  CHECK(documents.counts().blank_lines == 2);
  const auto& tokenizer = *documents.maker().tokenizer().tokenizer;
  for (std::int64_t i = 0; i < 3; ++i) {
    const Example example = documents.read(i);
    CHECK(std::ssize(example.ids) == documents.tokens(i));
    CHECK(std::ranges::count(example.trained, 1) == documents.trained(i));
  }
  CHECK(tokenizer.decode(documents.read(2).ids) == "five six<|im_end|>");
}

TEST_CASE("documents of a file larger than a block are those of its lines") {
  const Folder folder;
  std::string text;
  const int count = 30000;
  for (int i = 0; i < count; ++i) {
    text +=
        pair("number " + std::to_string(i) + std::string(static_cast<std::size_t>(i % 300), '.'),
             " " + std::to_string(i));
  }
  REQUIRE(text.size() > (std::size_t{5} << 20));  // blocks are of 4 MiB
  const std::vector<std::string> files = {folder.write("a.jsonl", text)};
  const Documents documents(files, maker(), {.longest = 1000});
  REQUIRE(documents.size() == count);
  const auto& tokenizer = *documents.maker().tokenizer().tokenizer;
  for (const std::int64_t i : {0, 1, 14999, 20000, 25000, count - 1}) {
    CHECK(trained_parts(documents.read(i), tokenizer) ==
          std::vector<std::string>{" " + std::to_string(i) + "<|im_end|>"});
    CHECK(documents.where(i) == files[0] + ":" + std::to_string(i + 1));
  }
}

TEST_CASE("every fault of a file is found, with its line") {
  const Folder folder;
  const std::string error = documents_error(
      folder, pair("a", " b") + "{broken\n" + pair("a", "") + pair("a", " b") + "{\"c\": 1}\n");
  CHECK_THAT(error, Contains("3 faults:"));
  CHECK_THAT(error, Contains("a.jsonl:2: it is not JSON"));
  CHECK_THAT(error, Contains("a.jsonl:3: 'completion' is empty"));
  CHECK_THAT(error, Contains("a.jsonl:5: the record is of no kind"));
  std::string many;
  for (int i = 0; i < 50; ++i) {
    many += "{broken\n";
  }
  CHECK_THAT(documents_error(folder, many), Contains("50 faults") && Contains("and 40 more"));
  CHECK_THAT(documents_error(folder, "\n\n"), Contains("there is no document (2 blank lines"));
}

TEST_CASE("a pair of answers is a row of two sequences") {
  const Folder folder;
  const auto record = [](const std::string& prompt, const std::string& chosen,
                         const std::string& rejected) {
    return Json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump() + "\n";
  };
  const std::vector<std::string> files = {
      folder.write("a.jsonl", record("one", " two", " three four") + record("a", " b", " c"))};
  const auto documents = std::make_shared<const Documents>(
      files, maker(), DocumentOptions{.longest = 30, .form = RecordForm::preference});
  REQUIRE(documents->size() == 4);
  CHECK(documents->where(1) == files[0] + ":1");
  CHECK(documents->where(2) == files[0] + ":2");
  constexpr std::int64_t length = 29;
  const PreferenceRows rows(documents, 0, 2, length, 7);
  REQUIRE(rows.rows() == 2);
  Ids inputs(2 * length);
  Ids targets(2 * length);
  rows.read(0, inputs, targets);
  for (const std::int64_t answer : {0, 1}) {
    const Example example = documents->read(answer);
    Ids own_inputs(length, 7);
    Ids own_targets(length, ignored_target);
    write_document(example, own_inputs, own_targets);
    const auto begin = answer * length;
    CHECK(Ids(inputs.begin() + begin, inputs.begin() + begin + length) == own_inputs);
    CHECK(Ids(targets.begin() + begin, targets.begin() + begin + length) == own_targets);
  }
  CHECK(rows.trained(0) == documents->trained(0) + documents->trained(1));
  CHECK(rows.documents(0)[1].begin == length);
  CHECK(rows.documents(0)[1].end == length + documents->tokens(1) - 1);

  // Cut so that one answer is gone: the pair is left out, and counted.
  const std::vector<std::string> long_files = {folder.write(
      "b.jsonl", record("one two three", " four", " four five six seven eight nine ten") +
                     record("a", " b", " c d e f g h i j k l m n o") +
                     record("one two three four five six seven eight nine", " a", " b"))};
  const auto prompt = std::ssize(maker()->tokenizer().tokenizer->encode("one two three"));
  const Documents cut(
      long_files, maker(),
      {.longest = prompt + 2, .too_long = TooLong::cut, .form = RecordForm::preference});
  CHECK(cut.counts().left_out == 1);
  CHECK(cut.size() == 4);
  CHECK(cut.counts().cut == 2);
}

TEST_CASE("a line that is too long is a fault, and those after it are read") {
  const Folder folder;
  const std::string error =
      documents_error(folder, pair("a", " b") + "{\"prompt\": \"" +
                                  std::string(std::size_t{40} << 20, 'x') + "\"}\n{broken\n");
  CHECK_THAT(error, Contains("a.jsonl:2: the line is too long (expected at most 32.0 MiB, got 40"));
  CHECK_THAT(error, Contains("a.jsonl:3: it is not JSON"));
}

TEST_CASE("documents that are too long are an error, left out or cut, and counted") {
  const Folder folder;
  const std::string text =
      pair("a", " b c d e f g h i j k") + pair("a", " b") + pair("a b c d e f g h i j k l", " m");
  CHECK_THAT(documents_error(folder, text, {.longest = 8}),
             Contains("a.jsonl:1: the document is longer than a row (expected at most 8 tokens"));
  const std::vector<std::string> files = {folder.write("a.jsonl", text)};
  const Documents skipped(files, maker(), {.longest = 8, .too_long = TooLong::skip});
  CHECK(skipped.size() == 1);
  CHECK(skipped.counts().left_out == 2);
  const Documents cut(files, maker(), {.longest = 8, .too_long = TooLong::cut});
  CHECK(cut.size() == 2);  // of the third, only the question would be left
  CHECK(cut.counts().cut == 1);
  CHECK(cut.counts().left_out == 1);
  CHECK(cut.read(0).ids.size() == 8);
}

TEST_CASE("a file that changes during the run is an error") {
  const Folder folder;
  const std::vector<std::string> files = {folder.write("a.jsonl", pair("a", " b"))};
  const Documents documents(files, maker(), {.longest = 100});
  documents.read(0);
  folder.write("a.jsonl", pair("a", " b") + pair("c", " d"));
  CHECK_THAT(error_of([&] { documents.read(0); }), Contains("a.jsonl: the file was"));
}

TEST_CASE("texts are encoded one after the other, each with the token that ends it") {
  const Folder folder;
  const std::string one = "Some words and more of them.\n";
  const std::vector<std::string> files = {folder.write("a.txt", one),
                                          folder.write("b.txt", "Others.")};
  const auto made = maker();
  const auto& tokenizer = *made->tokenizer().tokenizer;
  const EncodedText texts = EncodedText::from_files(files, made);
  Ids all(static_cast<std::size_t>(texts.size()));
  texts.read(0, all);
  const std::vector<tokenize::TokenId> ids(all.begin(), all.end());
  CHECK(tokenizer.decode(ids) == one + "<|im_end|>Others.<|im_end|>");
  const std::vector<std::string> records = {folder.write(
      "c.jsonl", Json{{"text", one}}.dump() + "\n" + Json{{"text", "Others."}}.dump())};
  const EncodedText same = EncodedText::from_records(records, made);
  Ids again(static_cast<std::size_t>(same.size()));
  same.read(0, again);
  CHECK(again == all);
}

TEST_CASE("a long text has the tokens that it has as a whole, from wherever it is read") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text +=
        "Line " + std::to_string(i * 7919) + (i % 5 != 0 ? "\n\n  indented\n" : " na\xC3\xAFve\n");
  }
  const std::vector<std::string> files = {folder.write("a.txt", text)};
  const auto made = maker();
  const EncodedText texts = EncodedText::from_files(files, made);
  std::vector<tokenize::TokenId> whole =
      made->tokenizer().tokenizer->encode(text, {.add_special = false, .parse_special = false});
  whole.push_back(*made->tokenizer().special.eos);
  REQUIRE(texts.size() == std::ssize(whole));
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{12345}, texts.size() / 2}) {
    Ids part(static_cast<std::size_t>(std::min<std::int64_t>(60000, texts.size() - begin)));
    texts.read(begin, part);
    CHECK(std::ranges::equal(
        part, std::span(whole).subspan(static_cast<std::size_t>(begin), part.size())));
  }
}

TEST_CASE("text that is not UTF-8 is a fault with its line") {
  const Folder folder;
  const std::vector<std::string> files = {folder.write("a.txt", "one\ntwo\ncaf\xE9\n")};
  CHECK_THAT(error_of([&] { EncodedText::from_files(files, maker()); }),
             Contains("a.txt:3: byte 0xE9 is not UTF-8"));
  const std::vector<std::string> records = {
      folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"messages\": []}\n")};
  CHECK_THAT(error_of([&] { EncodedText::from_records(records, maker()); }),
             Contains("a.jsonl:2: the record is of another kind"));
}

TEST_CASE("a row has its document, and padding whose loss does not count") {
  const Folder folder;
  const std::vector<std::string> files = {
      folder.write("a.jsonl", pair("one two", " three") + pair("x", " y z"))};
  const auto documents =
      std::make_shared<const Documents>(files, maker(), DocumentOptions{.longest = 21});
  const DocumentRows rows(documents, 0, 2, 20, 9);
  REQUIRE(rows.rows() == 2);
  for (std::int64_t row = 0; row < 2; ++row) {
    const Example document = documents->read(row);
    Ids inputs(20);
    Ids targets(20);
    rows.read(row, inputs, targets);
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      const bool inside = i + 1 < document.ids.size();
      CHECK(inputs[i] == (inside ? document.ids[i] : 9));
      const bool trained = inside && document.trained[i + 1] != 0;
      CHECK(targets[i] == (trained ? document.ids[i + 1] : ignored_target));
      counted += trained ? 1 : 0;
    }
    CHECK(counted == rows.trained(row));
    CHECK(rows.used(row) == std::ssize(document.ids) - 1);
  }
}

TEST_CASE("a mixture of one source is that source's order") {
  const auto ten = std::make_shared<const Numbers>(10);
  const Mixture one({{ten, 3}}, 5, true);
  for (std::int64_t place = 0; place < 30; ++place) {
    const Mixture::SourceRow at = one.at(place);
    CHECK(at.row == Permutation(10, 5, static_cast<std::uint64_t>(place / 10))[place % 10]);
    CHECK(at.epoch == place / 10);
  }
}

TEST_CASE("each source of a mixture has its share, and each of its rows once an epoch") {
  const std::vector<std::int64_t> sizes = {10, 77, 400};
  const std::vector<double> weights = {1, 2, 5};
  std::vector<WeightedRows> sources;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sources.push_back({std::make_shared<const Numbers>(sizes[i]), weights[i]});
  }
  const Mixture mixture(sources, 11, true);
  std::vector<std::int64_t> counts(3);
  std::map<std::pair<std::size_t, std::int64_t>, std::multiset<std::int64_t>> seen;
  for (std::int64_t place = 0; place < 2000; ++place) {
    const Mixture::SourceRow at = mixture.at(place);
    ++counts[at.source];
    seen[{at.source, at.epoch}].insert(at.row);
    if (place == 999) {
      CHECK(counts == std::vector<std::int64_t>{125, 250, 625});
    }
  }
  CHECK(counts == std::vector<std::int64_t>{250, 500, 1250});
  for (const auto& [which, rows] : seen) {
    const std::set<std::int64_t> different(rows.begin(), rows.end());
    CHECK(different.size() == rows.size());
    const bool last = which.second == counts[which.first] / sizes[which.first];
    CHECK((last || std::ssize(rows) == sizes[which.first]));
  }
  const Mixture other(sources, 12, true);
  int same = 0;
  for (std::int64_t place = 0; place < 200; ++place) {
    same += mixture.at(place).source == other.at(place).source ? 1 : 0;
  }
  CHECK(same < 180);
}

TEST_CASE("weights that give a source nothing are refused") {
  const auto ten = std::make_shared<const Numbers>(10);
  const auto none = std::make_shared<const Numbers>(0);
  CHECK_THAT(error_of([&] { Mixture({{ten, 1}, {ten, 0}}, 1, true); }),
             Contains("must be more than 0"));
  CHECK_THAT(error_of([&] { Mixture({{ten, 1e6}, {ten, 1}}, 1, true); }),
             Contains("source 2 would get no row"));
  CHECK_THAT(error_of([&] { Mixture({{ten, 1}, {none, 1}}, 1, true); }), Contains("no row"));
}
