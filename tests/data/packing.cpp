// Documents in rows: the rule of packing against a search without an index, and what rows hold.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
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
using Rows = std::vector<Ids>;

namespace {

Rows rows_of(const Packing& packing) {
  Rows rows;
  for (std::int64_t row = 0; row < packing.rows(); ++row) {
    const auto own = packing.row(row);
    rows.emplace_back(own.begin(), own.end());
  }
  return rows;
}

/// The rule, by a search through all documents that are left.
Rows searched(const Ids& lengths, std::int64_t room, std::int64_t look_ahead) {
  Ids left(lengths.size());
  std::iota(left.begin(), left.end(), 0);
  Rows rows;
  while (!left.empty()) {
    rows.emplace_back();
    std::int64_t free = room;
    for (std::size_t at = 0; at < left.size();) {
      free -= lengths[static_cast<std::size_t>(left[at])];
      rows.back().push_back(left[at]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
      at = left.size();  // none
      std::int64_t longest = 0;
      for (std::size_t i = 0; i < std::min(left.size(), static_cast<std::size_t>(look_ahead));
           ++i) {
        const std::int64_t length = lengths[static_cast<std::size_t>(left[i])];
        if (length <= free && length > longest) {
          longest = length;
          at = i;
        }
      }
    }
  }
  return rows;
}

Ids some_lengths(int count, std::int64_t room) {
  Ids lengths;
  std::uint64_t state = 7;
  for (int i = 0; i < count; ++i) {
    state = hash_combine(state, 1);
    lengths.push_back(1 + static_cast<std::int64_t>(state % static_cast<std::uint64_t>(room)) /
                              (i % 3 + 1));
  }
  return lengths;
}

/// The parts of a list with commas.
std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(", ", begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 2;
  }
  return parts;
}

std::string record(int number) {
  std::string completion;
  for (int i = 0; i <= number % 5; ++i) {
    completion += " " + std::to_string(number + i);
  }
  return Json{{"prompt", std::to_string(number)}, {"completion", completion}}.dump() + "\n";
}

std::shared_ptr<const Documents> documents(const Folder& folder, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += record(i);
  }
  const std::vector<std::string> files = {folder.write("a.jsonl", text)};
  return std::make_shared<const Documents>(
      files, std::make_shared<const ExampleMaker>(small_tokenizer(), nullptr, TrainOn::answers),
      DocumentOptions{.longest = 33});
}

}  // namespace

TEST_CASE("packing takes the longest of the next documents that fits") {
  CHECK(rows_of(pack(Ids{4, 3, 5, 6, 2}, 10)) == Rows{{0, 3}, {1, 2, 4}});
  CHECK(rows_of(pack(Ids{5, 5, 5}, 10)) == Rows{{0, 1}, {2}});
  CHECK(rows_of(pack(Ids{4, 3, 5, 6}, 10, 2)) == Rows{{0, 2}, {1, 3}});
  CHECK(rows_of(pack(Ids{4, 3, 5, 6}, 10, 1)) == Rows{{0, 1}, {2}, {3}});
  CHECK(rows_of(pack(Ids{}, 10)).empty());
  for (const std::int64_t look_ahead : {1, 2, 7, 50, 10000}) {
    for (const std::int64_t room : {5, 64}) {
      const Ids lengths = some_lengths(300, room);
      CHECK(rows_of(pack(lengths, room, look_ahead)) == searched(lengths, room, look_ahead));
    }
  }
  CHECK_THAT(error_of([] { pack(Ids{3, 11}, 10); }), Contains("does not fit into a row"));
}

TEST_CASE("packed rows hold each document once, whole, with padding behind the last") {
  const Folder folder;
  const auto all = documents(folder, 40);
  constexpr std::int64_t length = 32;
  std::map<std::string, std::int64_t> numbers;
  for (std::int64_t i = 0; i < 40; ++i) {
    numbers.emplace(all->where(i), i);
  }
  for (const std::optional<std::uint64_t> order :
       {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(5)}) {
    const PackedRows rows(all, 3, 40, length, 9, order);
    CHECK(rows.rows() < 30);
    std::vector<std::string> seen;
    std::int64_t trained = 0;
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
      Ids inputs(length);
      Ids targets(length);
      rows.read(row, inputs, targets);
      const Ids begins = rows.document_begins(row);
      std::int64_t at = 0;
      std::size_t document = 0;
      for (const std::string& where : parts_of(rows.where(row))) {
        seen.push_back(where);
        CHECK(begins.at(document++) == at);
        const Example one = all->read(numbers.at(where));
        for (std::size_t i = 0; i + 1 < one.ids.size(); ++i, ++at) {
          CHECK(inputs[static_cast<std::size_t>(at)] == one.ids[i]);
          CHECK(targets[static_cast<std::size_t>(at)] ==
                (one.trained[i + 1] != 0 ? one.ids[i + 1] : ignored_target));
        }
      }
      CHECK(at == rows.used(row));
      CHECK(begins.size() == document + (at < length ? 1 : 0));
      CHECK((at == length || begins.back() == at));
      for (; at < length; ++at) {
        CHECK(inputs[static_cast<std::size_t>(at)] == 9);
        CHECK(targets[static_cast<std::size_t>(at)] == ignored_target);
      }
      const auto counted = length - std::ranges::count(targets, ignored_target);
      CHECK(counted == rows.trained(row));
      trained += counted;
    }
    std::ranges::sort(seen);
    CHECK(std::ranges::adjacent_find(seen) == seen.end());
    CHECK(seen.size() == 37);
    std::int64_t expected = 0;
    for (std::int64_t i = 3; i < 40; ++i) {
      expected += all->trained(i);
    }
    CHECK(trained == expected);
  }
}

TEST_CASE("the order in which documents are packed is a function of the seed") {
  const Folder folder;
  const auto all = documents(folder, 40);
  const auto first = [&](std::optional<std::uint64_t> order) {
    return PackedRows(all, 0, 40, 32, 0, order).where(0);
  };
  CHECK(first({}).starts_with(all->where(0)));
  CHECK(first(5) == first(5));
  CHECK(first(5) != first(6));
  CHECK(first(5) != first({}));
}
