// Draws by batch row: the micro-batches of a step, in any layout, draw what
// docs/random-numbers-of-a-run.md says for the rows of the whole step.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "random_page.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::on_ranks;

namespace {

constexpr std::int64_t batch = 12;
constexpr std::uint64_t seed = 77;
constexpr double p = 0.4;

/// A way in which ranks hold the rows: `parts` of the batch.
struct Way {
  std::string name;
  std::vector<Placement> placements;  // on a mesh of 2 x 2
  std::int64_t parts;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"two parts, on replicas", {Shard(0), Replicate()}, 2},
      {"two parts, dim 1 sharded", {Shard(0), Shard(1)}, 2},
      {"two parts, gathered", {Replicate(), Replicate()}, 2},
      {"four parts", {Shard(0), Shard(0)}, 4},
      {"four parts, dim 1 sharded twice", {Shard(1), Shard(1)}, 4},
      {"one part, held otherwise", {Shard(1), Shard(0)}, 1},
  };
  return all;
}

/// What the page says for one call after another within a micro-batch.
struct Page {
  MicroBatch rows;
  std::uint64_t offset = 0;

  /// A tensor of this shape, value(word) for each element; dim 0 is the batch, alone or flattened.
  Tensor by_row(const Dims& shape, const std::function<double(std::uint32_t)>& value) {
    return by_element(shape, [&](std::uint64_t element) {
      return value(random_page::word(seed, "dropout", element));
    });
  }
  Tensor by_element(const Dims& shape, const std::function<double(std::uint64_t)>& value) {
    const auto u = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
    const Tensor expected = empty(shape, DType::f64);
    const std::int64_t row = shape.product() / (rows.rows * rows.parts);
    for (std::int64_t i = 0; i < expected.numel(); ++i) {
      expected.data<double>()[i] =
          value(offset + random_page::place_in_step(u(i), u(row), u(rows.batch), u(rows.parts),
                                                    u(rows.first), u(rows.rows)));
    }
    offset += u((row * rows.batch + 3) / 4 * 4);
    return expected;
  }
};

void same(const Tensor& y, const Tensor& expected, const Layout& layout, const std::string& what) {
  dtensor_test::check(dtensor_test::values(y) == dtensor_test::part_of(expected, layout), what);
}

/// 1 where the element is kept.
double kept(std::uint32_t word) { return random_page::bernoulli(word, p) ? 0 : 1; }

/// One micro-batch: every random operator, in turn.
void draw_all(const Way& way, const MicroBatch& rows, std::uint64_t offset) {
  const Layout layout =
      Layout::make(DeviceMesh::make({"a", "b"}, {2, 2}), {way.placements[0], way.placements[1]});
  const std::int64_t n = rows.rows * rows.parts;
  const Dims shape = {n, 5, 3};
  Page page{rows, offset};
  const auto source = [] { return by_batch_row("dropout"); };
  const auto blank = [&](const Dims& s, DType dtype = DType::f64) {
    return distributed_empty(s, layout, dtype);
  };
  const double factor = 1 / (1 - p);
  const auto dropped = [&](std::uint32_t word) { return kept(word) * factor; };

  same(ops::dropout(distributed_ones(shape, layout, DType::f64), p, source()),
       page.by_row(shape, dropped), layout, "dropout");
  same(ops::dropout(distributed_ones({n * 5, 3}, layout, DType::f64), p, source()),
       page.by_row({n * 5, 3}, dropped), layout, "dropout of rows that are flattened");
  same(ops::uniform_(blank(shape), 0, 1, source()), page.by_row(shape, random_page::uniform),
       layout, "uniform_");
  same(ops::normal_(blank(shape), 0, 1, source()),
       page.by_element(shape,
                       [](std::uint64_t i) { return random_page::normal(seed, "dropout", i); }),
       layout, "normal_");
  same(ops::bernoulli_(blank(shape), p, source()),
       page.by_row(shape, [](std::uint32_t word) { return 1 - kept(word); }), layout, "bernoulli_");
  same(ops::bernoulli(distributed_full({n, 4}, p, layout, DType::f64), source()),
       page.by_row({n, 4}, [](std::uint32_t word) { return 1 - kept(word); }), layout, "bernoulli");
  same(ops::randint_(blank({n, 3}, DType::i64), 0, 10, source()),
       page.by_row({n, 3},
                   [](std::uint32_t word) { return std::floor(word * 10.0 / 4294967296.0); }),
       layout, "randint_");

  // Numbers that belong to no row are those of the step in every micro-batch.
  const Tensor shared = ops::uniform_(empty({5}, DType::f64), 0, 1, random_stream("dropout"));
  for (std::int64_t i = 0; i < 5; ++i) {
    dtensor_test::check(shared.data<double>()[i] ==
                            random_page::uniform(random_page::word(
                                seed, "dropout", page.offset + static_cast<std::uint64_t>(i))),
                        "a draw that is not by row");
  }
  page.offset += 8;
  dtensor_test::check(random_stream("dropout").offset == page.offset, "the stream's offset");
}

void on_the_mesh(const std::function<void(const Way&, const MicroBatch&)>& f) {
  on_ranks(4, [&](int) {
    for (const Way& way : ways()) {
      const std::int64_t part = batch / way.parts;
      for (std::int64_t rows = 1; rows <= part; ++rows) {
        if (part % rows != 0) {
          continue;
        }
        for (std::int64_t first = 0; first < part; first += rows) {
          try {
            f(way, {.batch = batch, .parts = way.parts, .first = first, .rows = rows});
          } catch (const Error& error) {
            fail(way.name + ", rows " + std::to_string(first) + " + " + std::to_string(rows) +
                 ": " + error.what());
          }
        }
      }
    }
  });
}

}  // namespace

TEST_CASE("micro-batches draw the numbers of the step's rows in every layout") {
  on_the_mesh([](const Way& way, const MicroBatch& rows) {
    set_seed(seed);
    take_numbers(random_stream("dropout"), 9);  // an earlier step's
    const RandomPosition step = random_position();
    // Whatever was drawn since the step began, by another micro-batch.
    take_numbers(random_stream("dropout"), rows.first * 1001);
    random_stream("first drawn from in a step").offset = 4;
    const StepScope scope([&](StepContext& at) { begin_micro_batch(at, step, rows); });
    dtensor_test::check(random_stream("first drawn from in a step").offset == 0,
                        "a stream that the step began with restarts");
    draw_all(way, rows, 12);
  });
}

TEST_CASE("attention drops the probabilities of the step's rows") {
  on_the_mesh([](const Way& way, const MicroBatch& rows) {
    if (way.placements[1] == Shard(0) && way.parts == 1) {
      return;  // shards dim 1 unevenly: heads are cut evenly only
    }
    const Layout layout =
        Layout::make(DeviceMesh::make({"a", "b"}, {2, 2}), {way.placements[0], way.placements[1]});
    set_seed(seed);
    const StepScope scope([&](StepContext& at) { begin_micro_batch(at, random_position(), rows); });
    const std::int64_t n = rows.rows * rows.parts;
    // Equal scores over 4 keys, and values that are unit vectors: a result is its probability.
    const Tensor q = distributed_zeros({n, 4, 3, 4}, layout, DType::f64);
    const Tensor k = distributed_zeros({n, 4, 4, 4}, layout, DType::f64);
    const Tensor unit = empty({n, 4, 4, 4}, DType::f64);
    for (std::int64_t i = 0; i < unit.numel(); ++i) {
      unit.data<double>()[i] = i / 4 % 4 == i % 4 ? 1 : 0;
    }
    const Tensor v = distribute(unit, layout);
    Page page{rows, 0};
    const Tensor expected = page.by_row({n, 4, 3, 4}, kept);
    const std::vector<double> wanted = dtensor_test::part_of(expected, layout);
    const std::vector<double> got =
        dtensor_test::values(ops::scaled_dot_product_attention(q, k, v, {}, p));
    dtensor_test::check(got.size() == wanted.size(), "sizes");
    for (std::size_t i = 0; i < got.size(); ++i) {
      dtensor_test::check(std::abs(got[i] - wanted[i] / 4 / (1 - p)) < 1e-12, "a probability");
    }
  });
}

TEST_CASE("multinomial draws for the step's rows") {
  on_the_mesh([](const Way& way, const MicroBatch& rows) {
    if (way.placements[0] == Shard(1) || way.placements[1] == Shard(1)) {
      return;  // rows of weights are not cut
    }
    const Layout layout =
        Layout::make(DeviceMesh::make({"a", "b"}, {2, 2}), {way.placements[0], way.placements[1]});
    set_seed(seed);
    const StepScope scope([&](StepContext& at) { begin_micro_batch(at, random_position(), rows); });
    const std::int64_t n = rows.rows * rows.parts;
    const Tensor weights = distributed_ones({n, 4}, layout, DType::f64);
    Page page{rows, 0};
    same(
        ops::multinomial(weights, 7, true, by_batch_row("dropout")),
        page.by_row({n, 7}, [](std::uint32_t word) { return std::floor(word / 4294967296.0 * 4); }),
        layout, "with replacement");
    // Without replacement and with equal weights: positions by falling words.
    const Tensor words =
        page.by_row({n, 4}, [](std::uint32_t word) { return static_cast<double>(word); });
    const Tensor expected = empty({n, 4}, DType::f64);
    for (std::int64_t row = 0; row < n; ++row) {
      const double* const w = words.data<double>() + row * 4;
      std::vector<int> order = {0, 1, 2, 3};
      std::sort(order.begin(), order.end(), [&](int a, int b) { return w[a] > w[b]; });
      std::copy(order.begin(), order.end(), expected.data<double>() + row * 4);
    }
    same(ops::multinomial(weights, 4, false, by_batch_row("dropout")), expected, layout,
         "without replacement");
  });
}

TEST_CASE(
    "recomputation and gradients use the micro-batch of the forward, also outside its scope") {
  const MicroBatch rows{.batch = batch, .parts = 2, .first = 2, .rows = 2};
  set_seed(seed);
  Tensor x = full({4, 5}, 1, DType::f64);
  x.set_requires_grad();
  Tensors y;
  {
    const StepScope scope([&](StepContext& at) { begin_micro_batch(at, random_position(), rows); });
    y = checkpoint(
        [](std::span<const Tensor> in) {
          return Tensors{ops::dropout(in[0], p, by_batch_row("dropout"))};
        },
        std::vector{x});
  }
  const std::uint64_t after = random_stream("dropout").offset;
  CHECK(after == 60);
  Page page{rows, 0};
  const std::vector<double> expected = to_doubles(
      page.by_row({4, 5}, [](std::uint32_t word) { return kept(word) * (1 / (1 - p)); }));
  CHECK(to_doubles(y[0]) == expected);
  backward(ops::sum(y[0]));
  CHECK(to_doubles(x.grad()) == expected);
  CHECK(random_stream("dropout").offset == after);
  set_seed(0);
}

TEST_CASE("references to streams stay valid") {
  RandomStream& stream = random_stream("kept");
  const RandomPosition before = random_position();
  random_stream("another");
  set_seed(5);
  CHECK(&random_stream("kept") == &stream);
  CHECK(stream.seed == 5);
  {
    const StepScope scope(
        [&](StepContext& at) { begin_micro_batch(at, before, {.batch = 2, .rows = 1}); });
  }
  {
    const ReplayScope scope(before);
  }
  set_random_state({});
  CHECK(&random_stream("kept") == &stream);
  set_seed(0);
}

TEST_CASE("a draw by row for a tensor without the rows is refused, and rows that no step has") {
  const RandomPosition step = random_position();
  {
    const StepScope scope([&](StepContext& at) {
      begin_micro_batch(at, step, {.batch = 12, .parts = 2, .first = 0, .rows = 3});
    });
    CHECK(dtensor_test::contains(
        dtensor_test::error_of([] { ops::dropout(full({7, 2}, 1), 0.5, by_batch_row("dropout")); }),
        "dropout: dim 0 of [7, 2] does not hold the micro-batch's rows (expected a multiple of 6"));
    CHECK(dtensor_test::error_of(
              [] { ops::dropout(full({7, 2}, 1), 0.5, random_stream("dropout")); }) == "no error");
  }
  for (const MicroBatch& wrong : {MicroBatch{.batch = 12, .parts = 5, .first = 0, .rows = 1},
                                  MicroBatch{.batch = 12, .parts = 2, .first = 4, .rows = 3},
                                  MicroBatch{.batch = 12, .parts = 2, .first = -1, .rows = 3},
                                  MicroBatch{.batch = 12, .parts = 0, .first = 0, .rows = 3},
                                  MicroBatch{.batch = 12, .parts = 2, .first = 0, .rows = 0}}) {
    CHECK(dtensor_test::contains(dtensor_test::error_of([&] {
                                   const StepScope scope([&](StepContext& at) {
                                     begin_micro_batch(at, step, wrong);
                                   });
                                 }),
                                 "micro-batch: "));
  }
  // Outside of a micro-batch every shape is drawn for.
  CHECK(dtensor_test::error_of(
            [] { ops::dropout(full({7, 2}, 1), 0.5, by_batch_row("dropout")); }) == "no error");
}
