// Rows that travel to the owners of their groups and back, on ranks that are threads, against a
// list of all rows that is sorted directly.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "on_ranks.hpp"

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;

using namespace tessera;
using collective::World;
using ops::RowOrder;
using tessera::testing::check;
using tessera::testing::error_of;

namespace {

/// How many rows `from` sends to group `group` of rank `to`; some are 0.
std::int64_t rows_sent(int from, int to, int group) { return (3 * from + 5 * to + 2 * group) % 4; }

/// The rows that go from one rank to a group of another one have this in each element.
double value_of(int from, int to, int group, std::int64_t row, std::int64_t column) {
  return 1 + from + 8.0 * to + 64.0 * group + 512.0 * static_cast<double>(row) +
         4096.0 * static_cast<double>(column);
}

/// An exchange as one rank sees it.
struct Exchange {
  int rank;
  int ranks;
  int groups;

  Tensor counts(const std::function<std::int64_t(int peer, int group)>& of) const {
    std::vector<std::int64_t> values;
    for (int peer = 0; peer < ranks; ++peer) {
      for (int group = 0; group < groups; ++group) {
        values.push_back(of(peer, group));
      }
    }
    return from_values(std::span<const std::int64_t>(values), {ranks, groups});
  }
  Tensor sends() const {
    return counts([&](int to, int group) { return rows_sent(rank, to, group); });
  }
  Tensor receives() const {
    return counts([&](int from, int group) { return rows_sent(from, rank, group); });
  }

  /// Rows of three elements with `unused` more, whose values nobody may see.
  static Tensor rows_of(const std::vector<double>& values, std::int64_t unused, double filling) {
    std::vector<double> all = values;
    all.resize(values.size() + static_cast<std::size_t>(3 * unused), filling);
    return from_values(std::span<const double>(all),
                       {static_cast<std::int64_t>(all.size()) / 3, 3});
  }
  static void add(std::vector<double>& values, int from, int to, int group) {
    for (std::int64_t row = 0; row < rows_sent(from, to, group); ++row) {
      for (std::int64_t column = 0; column < 3; ++column) {
        values.push_back(value_of(from, to, group, row, column));
      }
    }
  }
  /// What this rank sends, by rank and then by group.
  Tensor by_rank(std::int64_t unused, double filling) const {
    std::vector<double> values;
    for (int to = 0; to < ranks; ++to) {
      for (int group = 0; group < groups; ++group) {
        add(values, rank, to, group);
      }
    }
    return rows_of(values, unused, filling);
  }
  /// What this rank's groups get, by group and then by the rank that sent it.
  Tensor by_group(std::int64_t unused, double filling) const {
    std::vector<double> values;
    for (int group = 0; group < groups; ++group) {
      for (int from = 0; from < ranks; ++from) {
        add(values, from, rank, group);
      }
    }
    return rows_of(values, unused, filling);
  }
};

bool equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && to_doubles(a) == to_doubles(b);
}

void for_each_exchange(const std::function<void(World&, const Exchange&)>& f) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int groups : {1, 2, 3}) {
      tessera::testing::on_ranks(ranks,
                                 [&](int rank) { f(World::current(), {rank, ranks, groups}); });
    }
  }
}

}  // namespace

TEST_CASE("all_to_all_rows brings rows to the owners of their groups and back") {
  for_each_exchange([](World& world, const Exchange& e) {
    for (const std::int64_t unused : {0, 2}) {
      for (const DType dtype : {DType::f64, DType::bf16, DType::i64}) {
        const Tensor sent = ops::cast(e.by_rank(unused, -7), dtype);
        const Tensor there = ops::cast(e.by_group(unused, 0), dtype);
        const Tensor got = ops::all_to_all_rows(sent, e.sends(), e.receives(), there.size(0),
                                                RowOrder::by_group, world.everyone());
        check(equal(got, there), "to groups: " + to_string(got));
        ops::PendingTensor issued = ops::all_to_all_rows_async(
            sent, e.sends(), e.receives(), there.size(0), RowOrder::by_group, world.everyone());
        const Tensor mixed = ops::cast(e.by_group(unused, -7), dtype);
        const Tensor back = ops::all_to_all_rows(mixed, e.receives(), e.sends(), sent.size(0),
                                                 RowOrder::by_rank, world.everyone());
        check(equal(back, ops::cast(e.by_rank(unused, 0), dtype)), "back: " + to_string(back));
        check(equal(issued.wait(), there), "issued: " + to_string(issued.wait()));
        check(issued.in_flight().same_as(issued.wait()), "one result");
      }
    }
  });
}

TEST_CASE("the gradient of all_to_all_rows is the way back and has a gradient itself") {
  for_each_exchange([](World& world, const Exchange& e) {
    Tensor x = e.by_rank(1, -7);
    x.set_requires_grad();
    const Tensor received = e.by_group(2, 9);  // as the gradient: that of unused rows is dropped
    Tensor weight = detached(received);
    weight.set_requires_grad();
    const Tensor y = ops::all_to_all_rows(x, e.sends(), e.receives(), received.size(0),
                                          RowOrder::by_group, world.everyone());
    const Tensor loss = ops::sum(ops::mul(y, weight));
    const std::vector<Tensor> first =
        gradients(std::vector{loss}, std::vector{Tensor()}, std::vector{x}, {.create_graph = true});
    check(equal(detached(first[0]), e.by_rank(1, 0)), "gradient: " + to_string(first[0]));
    // d(sum of the gradient's squares)/d(weight) = 2 weight where rows were received.
    backward(ops::sum(ops::square(first[0])));
    check(equal(weight.grad(), ops::mul_scalar(e.by_group(2, 0), 2)), "second gradient");
  });
}

TEST_CASE("rows of no elements, strided rows and vectors travel too") {
  for_each_exchange([](World& world, const Exchange& e) {
    const Tensor sent = e.by_rank(0, 0);
    const Tensor there = e.by_group(0, 0);
    const auto travel = [&](const Tensor& x) {
      return ops::all_to_all_rows(x, e.sends(), e.receives(), there.size(0), RowOrder::by_group,
                                  world.everyone());
    };
    const Tensor columns = ops::narrow(sent, 1, 1, 2);
    check(equal(travel(columns), ops::contiguous(ops::narrow(there, 1, 1, 2))), "strided");
    check(equal(travel(ops::select(sent, 1, 0)), ops::contiguous(ops::select(there, 1, 0))),
          "vector");
    check(travel(ops::narrow(sent, 1, 0, 0)).shape() == Dims{there.size(0), 0}, "no elements");
  });
}

TEST_CASE("on the meta device all_to_all_rows has a shape and needs no other rank") {
  const ops::GroupArgument group = ops::GroupArgument::of(std::vector{0, 1, 2, 3});
  const Tensor counts = empty({4, 2}, DType::i64, meta);
  const Tensor y = ops::all_to_all_rows(empty({5, 3}, DType::f32, meta), counts, counts, 20,
                                        RowOrder::by_group, group);
  CHECK(y.shape() == Dims{20, 3});
}

TEST_CASE("counts that do not fit are refused by name") {
  const auto world = World::single();
  const Tensor x = zeros({4, 2});
  const auto counts = [](std::vector<std::int64_t> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    return from_values(std::span<const std::int64_t>(values), {1, count});
  };
  const auto error = [&](const Tensor& sends, const Tensor& receives, std::int64_t rows) {
    return error_of([&] {
      ops::all_to_all_rows(x, sends, receives, rows, RowOrder::by_group, world->everyone());
    });
  };
  CHECK(error(counts({2, 2}), counts({2, 2}), 4) == "no error");
  CHECK(error(counts({2, 3}), counts({2, 3}), 9) ==
        "all_to_all_rows: sends have no room (expected counts from 0 that sum to at most 4 rows, "
        "got a count of 3 where 2 rows are left)");
  CHECK(error(counts({2, -1}), counts({2, -1}), 9).starts_with("all_to_all_rows: sends have no"));
  CHECK(error(counts({2, 2}), counts({2, 2}), 3).starts_with("all_to_all_rows: receives have no"));
  CHECK(error(counts({2, 2}), counts({2}), 4).starts_with("all_to_all_rows: "));
  CHECK(
      error(counts({2, 2}), counts({2, 2}), -1).starts_with("all_to_all_rows: there are no rows"));
  CHECK(
      error(zeros({1, 2}), counts({2, 2}), 4).starts_with("all_to_all_rows: sends has the wrong"));
  CHECK(error(ops::transpose(counts({2, 2}), 0, 1), counts({2, 2}), 4)
            .starts_with("all_to_all_rows: "));
}

TEST_CASE("ranks that disagree about a count get an error that names both") {
  const std::string error = error_of([] {
    collective::run_threads(2, [](World& world) {
      const auto both = [](std::int64_t first, std::int64_t second) {
        return from_values<std::int64_t>({first, second}, {2, 1});
      };
      const Tensor sends = both(1, 1);
      const Tensor receives = both(1, world.rank() == 1 ? 2 : 1);
      ops::all_to_all_rows(zeros({4, 2}), sends, receives, 4, RowOrder::by_group, world.everyone());
    });
  });
  CHECK(error.find("sends 2 elements to rank") != std::string::npos);
  CHECK(error.find("which expects 4") != std::string::npos);
}
