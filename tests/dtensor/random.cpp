// docs/random-numbers.md says what the numbers are; its table of test vectors was made by a program
// that knows only that page (tests/reference/random_numbers.py).
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::on_ranks;

TEST_CASE("the page's test vectors are what the generator gives, bit for bit") {
  std::ifstream page(TESSERA_RANDOM_PAGE);
  REQUIRE(page);
  int rows = 0;
  std::string line;
  while (std::getline(page, line) && !line.starts_with("| seed | stream | element |")) {
  }
  while (std::getline(page, line) && !line.empty()) {
    std::istringstream cells(line);
    std::string bar;
    std::string stream_name;
    std::string word;
    std::string uniform;
    std::string normal;
    std::uint64_t seed = 0;
    std::uint64_t element = 0;
    if (!(cells >> bar >> seed >> bar >> stream_name >> bar >> element >> bar >> word >> bar >>
          uniform >> bar >> normal)) {
      continue;
    }
    INFO(line);
    ++rows;
    set_seed(seed);
    RandomStream& stream = random_stream(stream_name);
    const std::uint64_t first = element / 4 * 4;
    const auto at = static_cast<std::int64_t>(element - first);
    stream.offset = first;
    const Tensor u = ops::uniform_(empty({4}), 0, 1, stream);
    CHECK(stream.offset == first + 4);
    stream.offset = first;
    const Tensor n = ops::normal_(empty({4}), 0, 1, stream);
    CHECK(u.data<float>()[at] == std::strtof(uniform.c_str(), nullptr));
    CHECK(n.data<float>()[at] == std::strtof(normal.c_str(), nullptr));
    const auto upper = static_cast<double>(std::strtoul(word.c_str(), nullptr, 16) >> 8);
    CHECK(to_doubles(u)[static_cast<std::size_t>(at)] == upper / (1 << 24));
  }
  CHECK(rows == 24);
  set_seed(0);
}

TEST_CASE("the page's micro-batches keep what dropout keeps") {
  std::ifstream page(TESSERA_RANDOM_PAGE);
  std::string line;
  while (std::getline(page, line) && line != "| parts | first | rows | kept |") {
  }
  int rows = 0;
  std::getline(page, line);
  while (std::getline(page, line)) {
    INFO(line);
    ++rows;
    std::istringstream cells(line);
    std::string bar;
    std::string expected;
    MicroBatch micro{.batch = 12};
    cells >> bar >> micro.parts >> bar >> micro.first >> bar >> micro.rows >> bar;
    for (std::string row; cells >> row && row != "|";) {
      expected += row;
    }
    set_seed(5);
    take_numbers(random_stream("dropout"), 8);
    const StepScope scope(
        [&](StepContext& at) { begin_micro_batch(at, random_position(), micro); });
    std::string kept;
    for (const double x : to_doubles(
             ops::dropout(full({micro.rows * micro.parts, 3}, 1), 0.4, by_batch_row("dropout")))) {
      kept += x == 0 ? '0' : '1';
    }
    CHECK(kept == expected);
  }
  CHECK(rows == 5);
  set_seed(0);
}

TEST_CASE("streams go on where they stood when they were saved") {
  set_seed(9);
  ops::uniform_(empty({5}), 0, 1, random_stream("a"));
  ops::uniform_(empty({2}), 0, 1, random_stream("b"));
  const auto saved = random_state();
  CHECK(saved.at("a").offset == 8);
  CHECK(saved.at("b").offset == 4);
  const std::vector<double> next = to_doubles(ops::normal_(empty({3}), 0, 1, random_stream("a")));
  set_seed(1);
  set_random_state(saved);
  CHECK(to_doubles(ops::normal_(empty({3}), 0, 1, random_stream("a"))) == next);
  set_seed(0);
}

TEST_CASE("dropout gives one device's mask in every layout, and replicas agree") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  set_seed(3);
  const Tensor whole = ops::dropout(full({7, 5}, 1), 0.4, random_stream("dropout"));
  const Tensor next = ops::dropout(full({7, 5}, 1), 0.4, random_stream("dropout"));
  on_ranks(4, [&](int) {
    for (const Layout& layout :
         {Layout::make(mesh, {Shard(0), Shard(0)}), Layout::make(mesh, {Replicate(), Shard(1)}),
          Layout::make(mesh, {Shard(1), Shard(1)}, {1, 0})}) {
      set_seed(3);
      const Tensor x = distributed_ones({7, 5}, layout);
      const Tensor y = ops::dropout(x, 0.4, random_stream("dropout"));
      dtensor_test::check(dtensor_test::values(y) == dtensor_test::part_of(whole, layout),
                          to_string(layout));
      // The same call again, whose plan is known by now, draws the next numbers.
      const Tensor z = ops::dropout(x, 0.4, random_stream("dropout"));
      dtensor_test::check(dtensor_test::values(z) == dtensor_test::part_of(next, layout),
                          "the second call in " + to_string(layout));
    }
  });
  set_seed(0);
}
