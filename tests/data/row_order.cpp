// Which rows a training takes when some are left out, beside lists that are made by hand.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.data;

using namespace tessera::data;
using tessera::testing::has;
using tessera::testing::input_error;

namespace {

class Counted final : public RowSource {
 public:
  explicit Counted(std::int64_t rows) : rows_(rows) {}
  std::int64_t rows() const override { return rows_; }
  std::int64_t trained(std::int64_t) const override { return 1; }
  std::int64_t used(std::int64_t) const override { return 1; }
  std::string where(std::int64_t) const override { return ""; }
  std::vector<RowRecord> records(std::int64_t) const override { return {}; }
  void read(std::int64_t, std::span<std::int64_t>, std::span<std::int64_t>) const override {}

 private:
  std::int64_t rows_;
};

std::shared_ptr<const Mixture> mixture(const std::vector<std::pair<std::int64_t, double>>& sources,
                                       bool shuffled) {
  std::vector<WeightedRows> rows;
  for (const auto& [count, weight] : sources) {
    rows.push_back({std::make_shared<Counted>(count), weight});
  }
  return std::make_shared<Mixture>(std::move(rows), 5, shuffled);
}

/// What is left out from a turn on.
struct Change {
  std::int64_t from = 0;
  std::vector<RowNumber> rows;
};

/// The places of the first turns: one after the other, as a person would take them.
std::vector<std::int64_t> taken(const Mixture& all, const std::vector<Change>& changes,
                                std::int64_t turns) {
  std::vector<std::int64_t> places;
  std::set<RowNumber> out;
  std::int64_t place = 0;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (const Change& change : changes) {
      if (change.from == turn) {
        out.insert(change.rows.begin(), change.rows.end());
      }
    }
    for (;; ++place) {
      const Mixture::SourceRow row = all.at(place);
      if (!out.contains({row.source, row.row})) {
        break;
      }
    }
    places.push_back(place++);
  }
  return places;
}

}  // namespace

TEST_CASE("a permutation tells where each of its entries is") {
  for (const std::int64_t size : {1, 2, 3, 5, 16, 17, 64, 65, 1000}) {
    for (const std::uint64_t epoch : {0, 1, 7}) {
      const Permutation order(size, 11, epoch);
      for (std::int64_t i = 0; i < size; ++i) {
        REQUIRE(order.index_of(order[i]) == i);
      }
    }
  }
}

TEST_CASE("a mixture tells the place of each row in each epoch") {
  for (const bool shuffled : {false, true}) {
    for (const auto& all :
         {mixture({{7, 1}}, shuffled), mixture({{7, 2}, {30, 1}, {400, 5}}, shuffled)}) {
      for (std::int64_t place = 0; place < 2500; ++place) {
        REQUIRE(all->place_of(all->at(place)) == place);
      }
    }
  }
}

TEST_CASE("rows that are left out change nothing else of the order") {
  for (const bool shuffled : {false, true}) {
    const std::vector<Change> changes = {{.from = 6, .rows = {{0, 3}, {0, 4}, {1, 0}}},
                                         {.from = 6, .rows = {{1, 7}}},
                                         {.from = 45, .rows = {{0, 3}, {0, 0}, {0, 1}}}};
    for (const auto& all :
         {mixture({{10, 1}, {12, 2}}, shuffled), mixture({{10, 3}, {200, 1}}, shuffled)}) {
      RowOrder order(all);
      for (const Change& change : changes) {
        order.leave_out(change.from, change.rows);
      }
      const std::vector<std::int64_t> expected = taken(*all, changes, 500);
      std::int64_t place = 0;
      for (std::int64_t turn = 0; turn < 500; ++turn) {
        REQUIRE(order.place(turn) == expected[static_cast<std::size_t>(turn)]);
        for (; place < expected[static_cast<std::size_t>(turn)]; ++place) {
          REQUIRE_FALSE(order.turn_of(place));
        }
        REQUIRE(order.turn_of(place) == turn);
        REQUIRE(order.turns_before(++place) == turn + 1);
      }
    }
  }
}

TEST_CASE("a source must keep rows when some are left out") {
  RowOrder order(mixture({{3, 1}}, true));
  order.leave_out(0, {{RowNumber{0, 0}}});
  const std::string error =
      input_error([&] { order.leave_out(2, {{RowNumber{0, 1}, RowNumber{0, 2}}}); });
  has(error,
      "too few rows of source 1 are left when 3 are left out (expected at least 1, "
      "got 0)");
  CHECK(order.at(5).row != 0);
}

TEST_CASE("places of rows are read as they are written") {
  for (const RecordPlace& place :
       {RecordPlace{"a.jsonl", 17, 0}, RecordPlace{"/x/a:b.txt", 65536, 300}}) {
    const RecordPlace again = parse_record_place(to_string(place));
    CHECK(again.file == place.file);
    CHECK(again.number == place.number);
    CHECK(again.token == place.token);
  }
  for (const char* const text : {"", "a.jsonl", ":3", "a:", "a:x", "a:3+", "a:3+x", "a:-1", "a:3 4",
                                 "a:99999999999999999999"}) {
    INFO(text);
    has(input_error([&] { parse_record_place(text); }), "it is not the place of a row");
  }
}
