// Which windows the rows of a step are; docs/random-numbers-of-a-run.md defines the order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "random_page.hpp"
#include "support.hpp"

import tessera.base;
import tessera.data;
import tessera.app.config;
import tessera.runs;

namespace runs = tessera::runs;
using namespace tessera::app;
using tessera::data::Permutation;
using trainer_test::Folder;

namespace {

using Ids = std::vector<std::int64_t>;

runs::RunSpec config_of(const std::string& text) { return parse_config(text, "run.toml"); }

/// A config over a file with the text 0, 1, 2, ... (as bytes + 1, so that it is text).
std::string counting_config(const Folder& folder, int tokens, const std::string& more) {
  std::string text;
  for (int i = 0; i < tokens; ++i) {
    text += static_cast<char>(1 + i % 250);
  }
  return "data.text = [\"" + folder.write("count.txt", text) + "\"]\n" + more;
}

}  // namespace

TEST_CASE("the order of the windows is the one of the page on random numbers") {
  std::ifstream page(TESSERA_SOURCE_FOLDER "/docs/random-numbers.md");
  std::string line;
  while (std::getline(page, line) && line != "| windows | seed | epoch | order |") {
  }
  int rows = 0;
  std::getline(page, line);
  while (std::getline(page, line) && !line.empty()) {
    INFO(line);
    ++rows;
    std::istringstream cells(line);
    std::string bar;
    std::int64_t windows = 0;
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    cells >> bar >> windows >> bar >> seed >> bar >> epoch >> bar;
    const Permutation order(windows, seed, epoch);
    for (std::int64_t place = 0; place < 10; ++place) {
      std::int64_t window = -1;
      cells >> window >> bar;
      CHECK(order[place] == window);
    }
  }
  CHECK(rows == 5);
  // Sizes at which the number of bits changes, every place.
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000}) {
    for (const std::uint64_t epoch : {0, 1}) {
      const Permutation order(static_cast<std::int64_t>(size), 9, epoch);
      for (std::uint64_t place = 0; place < size; ++place) {
        const auto window = order[static_cast<std::int64_t>(place)];
        REQUIRE(static_cast<std::uint64_t>(window) == random_page::order(size, 9, epoch, place));
      }
    }
  }
}

TEST_CASE("rows of a step are windows as the page on random numbers says") {
  const Folder folder;
  const std::string text = counting_config(folder, 101,
                                           "data.seq_len = 10\ntrain.batch = 4\ntrain.seed = 3\n"
                                           "data.validation = 0.0\n");
  const runs::Dataset shuffled(config_of(text), 256);
  const runs::Dataset sequential(config_of(text + "data.order = \"sequential\"\n"), 256);
  REQUIRE(shuffled.windows() == 10);
  for (std::int64_t step = 0; step < 9; ++step) {
    for (std::int64_t row = 0; row < 4; ++row) {
      const auto position = static_cast<std::uint64_t>(step * 4 + row);
      CHECK(shuffled.window_of(step, row) ==
            static_cast<std::int64_t>(random_page::order(10, 3, position / 10, position % 10)));
      CHECK(sequential.window_of(step, row) == static_cast<std::int64_t>(position % 10));
    }
  }
}

TEST_CASE("a permutation takes every place once and differs by seed and epoch") {
  for (const std::int64_t size : {1, 2, 3, 5, 64, 65, 1000}) {
    const Permutation order(size, 7, 0);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < size; ++i) {
      seen.insert(order[i]);
    }
    CHECK(std::ssize(seen) == size);
    CHECK(*seen.begin() == 0);
    CHECK(*seen.rbegin() == size - 1);
  }
  const auto first = [](std::uint64_t seed, std::uint64_t epoch) {
    const Permutation order(100000, seed, epoch);
    return Ids{order[0], order[1], order[2]};
  };
  CHECK(first(1, 0) == first(1, 0));
  CHECK(first(1, 0) != first(2, 0));
  CHECK(first(1, 0) != first(1, 1));
}

TEST_CASE("a permutation puts every entry everywhere equally often") {
  // Entry i lands in place p with probability 1/n over the epochs: chi-square over n cells, whose
  // mean is n-1 and whose standard deviation is sqrt(2(n-1)).
  constexpr int n = 13;
  constexpr int epochs = 13000;
  double largest = 0;
  for (int i = 0; i < n; ++i) {
    std::vector<int> count(n);
    for (int epoch = 0; epoch < epochs; ++epoch) {
      ++count[static_cast<std::size_t>(Permutation(n, 3, static_cast<std::uint64_t>(epoch))[i])];
    }
    double chi = 0;
    for (const int c : count) {
      chi += (c - 1000.0) * (c - 1000.0) / 1000.0;
    }
    largest = std::max(largest, chi);
  }
  CHECK(largest < (n - 1) + 5 * std::sqrt(2.0 * (n - 1)));
}

TEST_CASE("sequential order: row i of step s is window s*batch+i") {
  const Folder folder;
  const runs::Dataset data(config_of(counting_config(folder, 81, R"(
data.seq_len = 8
data.order = "sequential"
data.validation = 0
train.batch = 4
)")),
                           256);
  CHECK(data.windows() == 10);
  CHECK(data.validation_batches() == 0);
  const runs::Batch batch = data.rows(1, 2, 2);
  CHECK(batch.rows == 2);
  Ids expected(16);
  std::iota(expected.begin(), expected.end(), 1 + 6 * 8);
  CHECK(batch.inputs == expected);
  std::iota(expected.begin(), expected.end(), 2 + 6 * 8);
  CHECK(batch.targets == expected);
  CHECK(data.window_of(2, 1) == 9);
  CHECK(data.window_of(2, 2) == 0);  // the next epoch
  CHECK_THROWS_AS(data.rows(0, 3, 2), tessera::Error);
}

TEST_CASE("shuffled order takes every window once an epoch, whoever asks for which rows") {
  const Folder folder;
  const runs::Dataset data(config_of(counting_config(folder, 81, R"(
data.seq_len = 8
data.validation = 0
train.batch = 4
)")),
                           256);
  Ids first_epoch;
  Ids second_epoch;
  for (int position = 0; position < 20; ++position) {
    (position < 10 ? first_epoch : second_epoch)
        .push_back(data.window_of(position / 4, position % 4));
  }
  CHECK(first_epoch != second_epoch);
  Ids all(10);
  std::iota(all.begin(), all.end(), 0);
  std::ranges::sort(first_epoch);
  std::ranges::sort(second_epoch);
  CHECK(first_epoch == all);
  CHECK(second_epoch == all);

  const runs::Batch whole = data.rows(3, 0, 4);
  Ids joined;
  for (int row = 0; row < 4; ++row) {
    const runs::Batch part = data.rows(3, row, 1);
    joined.insert(joined.end(), part.inputs.begin(), part.inputs.end());
  }
  CHECK(joined == whole.inputs);
}
