// Operators whose results or operands lie in ways of their own: norms of parts, means over sharded
// rows, positions of a sharded sequence, lists, and what takes whole operands only.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

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
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::numbered;
using dtensor_test::on_ranks;
using dtensor_test::part_of;
using dtensor_test::values;

namespace {

/// Of both signs, 0 among them, all different.
Tensor numbers(const Dims& shape, DType dtype = DType::f64, double scale = 1) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = i == 4 ? 0 : scale * std::sin(1.3 * static_cast<double>(i) + 0.2);
  }
  return ops::cast(x, dtype);
}

bool near(const std::vector<double>& a, const std::vector<double>& b, double tolerance = 1e-12) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) {
    equal = std::abs(a[i] - b[i]) <= tolerance * std::max(1.0, std::abs(b[i]));
  }
  return equal;
}

Tensor whole(const Tensor& x) {
  const NoGrad no_grad;
  return full_tensor(detached(x));
}

std::vector<Layout> layouts_of(const DeviceMesh& mesh) {
  if (mesh.ndim() == 1) {
    return {Layout::make(mesh, {Shard(0)}), Layout::make(mesh, {Shard(1)})};
  }
  return {Layout::make(mesh, {Shard(0), Shard(1)}),
          Layout::make(mesh, {Shard(0), Shard(0)}, {1, 0}),
          Layout::make(mesh, {Replicate(), Shard(1)})};
}

std::vector<DeviceMesh> meshes() {
  return {DeviceMesh::make({"a"}, {4}), DeviceMesh::make({"a", "b"}, {2, 2})};
}

}  // namespace

TEST_CASE("norms over sharded dims are norms of parts: values, gradients, what is communicated") {
  struct Result {
    Tensor value, gradient;
  };
  // As a program would: the norm, its whole, and more that is computed from it.
  const auto differentiated = [](Tensor x, const std::function<Tensor(const Tensor&)>& f) {
    x.set_requires_grad();
    const Tensor y = f(x);
    const Tensor factors = numbered(y.shape(), 1);
    const Tensor loss = ops::sum(ops::mul(
        y, y.is_distributed() ? distribute(factors, gradient_layout(y.layout())) : factors));
    backward(loss);
    return Result{y, x.grad()};
  };
  for (const DeviceMesh& mesh : meshes()) {
    on_ranks(4, [&](int) {
      for (const double p : {2.0, 3.0, 1.5, 0.5, 1.0, std::numeric_limits<double>::infinity()}) {
        for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}}) {
          // Of nothing there is no extremum: no rank may be without elements.
          const Tensor x = numbers(p > 100 ? Dims{8, 4} : Dims{5, 3});
          const Result plain =
              differentiated(x, [&](const Tensor& t) { return ops::norm(t, p, dims); });
          for (const Layout& layout : layouts_of(mesh)) {
            const std::string what =
                std::to_string(p) + " over " + to_string(dims) + " of " + to_string(layout);
            const Tensor y = ops::norm(distribute(x, layout), p, dims);
            bool parts = false;
            for (int axis = 0; axis < mesh.ndim(); ++axis) {
              const Placement placement = layout.placement(axis);
              const bool reduced =
                  placement.is_shard() && (dims.empty() || dims.contains(placement.dim()));
              check(!reduced || y.layout().placement(axis) == NormPartial(p), what + ": a term");
              parts = parts || reduced;
            }
            const CommunicationReport report;
            const Tensor value = redistribute(y, gradient_layout(y.layout()));
            check(report.count("all_reduce") == (parts ? 1 : 0) &&
                      report.count("all_reduce") ==
                          static_cast<std::int64_t>(report.entries().size()),
                  what + ": one all-reduce makes the value");
            check(near(to_doubles(whole(value)), to_doubles(plain.value)), what + ": its value");
            if (p == std::numeric_limits<double>::infinity()) {
              continue;  // who has the extremum gets its gradient: amax
            }
            const Result got = differentiated(distribute(x, layout), [&](const Tensor& t) {
              const Tensor z = ops::norm(t, p, dims);
              return redistribute(z, gradient_layout(z.layout()));
            });
            check(got.gradient.layout() == layout, what + ": the gradient's layout");
            check(near(to_doubles(whole(got.gradient)), to_doubles(plain.gradient)),
                  what + ": the gradient");
          }
        }
      }
    });
  }
}

TEST_CASE("a norm of parts goes where nothing but its numbers' places matter") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {3});
  const Layout terms = Layout::make(mesh, {NormPartial(2)});
  on_ranks(3, [&](int) {
    const MeshScope scope(mesh);
    const Tensor x = numbers({6, 4});
    Tensor sharded = distribute(x, Layout::make(mesh, {Shard(0)}));
    const Tensor columns = ops::norm(sharded, 2, {0});
    check(columns.layout() == terms, "the columns' norms");
    // One reduce-scatter to shards; views and joins keep the terms; norms of norms too.
    {
      const CommunicationReport report;
      const Tensor cut = redistribute(columns, Layout::make(mesh, {Shard(0)}));
      check(report.count("reduce_scatter") == 1 && report.entries().size() == 1,
            report.to_string());
      check(near(to_doubles(whole(cut)), to_doubles(ops::norm(x, 2, {0}))), "the shards");
    }
    check(ops::view(columns, {2, 2}).layout() == terms, "a view");
    const Tensor both =
        ops::cat(std::vector{columns, ops::reshape(ops::vector_norm(sharded), {1})}, 0);
    check(both.layout() == terms, "joined");
    check(near(to_doubles(whole(both)),
               to_doubles(ops::cat(
                   std::vector{ops::norm(x, 2, {0}), ops::reshape(ops::vector_norm(x), {1})}, 0))),
          "their values");
    sharded.set_requires_grad();
    Tensor plain = numbers({6, 4});
    plain.set_requires_grad();
    const Tensor norm_of_norms = ops::norm(ops::norm(sharded, 2, {0}), 2);
    check(norm_of_norms.layout() == terms, "a norm of norms");
    backward(redistribute(norm_of_norms, {Replicate()}));
    backward(ops::vector_norm(plain));
    check(near(to_doubles(whole(norm_of_norms)), to_doubles(ops::vector_norm(plain))),
          "is the norm of all");
    check(near(to_doubles(whole(sharded.grad())), to_doubles(plain.grad())),
          "and so is its gradient");

    // f32's squares would overflow, and vanish; f64's do not.
    for (const double scale : {1e25, 1e-25}) {
      const Tensor far = numbers({6}, DType::f32, scale);
      const Tensor y = ops::vector_norm(distribute(far, Layout::make(mesh, {Shard(0)})));
      check(y.dtype() == DType::f32 &&
                near(to_doubles(whole(ops::mul_scalar(redistribute(y, {Replicate()}), 1 / scale))),
                     to_doubles(ops::mul_scalar(ops::vector_norm(far), 1 / scale)), 1e-6),
            "far from 1");
    }
    // What is not a norm's algebra is refused with the layout and the call that mends it.
    for (const std::string& error :
         {error_of([&] { ops::mul_scalar(columns, 2); }),
          error_of([&] { ops::add(columns, columns); }), error_of([&] { ops::sum(columns); }),
          error_of([&] { ops::norm(columns, 3); })}) {
      check(contains(error, "[Partial(norm(2))]") && contains(error, "call redistribute(x"), error);
    }
    const Tensor one = distribute(numbers({1}), {Replicate()});
    check(contains(error_of([&] { ops::cat(std::vector{columns, one}, 0); }), "[Partial(norm(2))]"),
          "what is whole does not become a term");
    // An order that f32 does not hold has no placement: whole operands only.
    check(contains(error_of([&] { ops::norm(sharded, 2.1, {0}); }), "norm: operand 'x'"), "2.1");
  });
}

TEST_CASE("a norm's gradient tells what it communicates") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {4});
  on_ranks(4, [&](int) {
    Tensor x = distribute(numbers({8, 3}), Layout::make(mesh, {Shard(0)}));
    x.set_requires_grad();
    const Tensor y = redistribute(ops::norm(x, 2, {0}), {Replicate()});
    const CommunicationReport report;
    backward(ops::sum(y));
    check(report.entries().size() == 1 && report.entries()[0].where == "whole_norm" &&
              report.entries()[0].operation == "all_reduce" && !report.entries()[0].implicit,
          report.to_string());
    check(report.bytes() == 2 * 3 * 3 * 8 / 4, "three numbers in f64");
  });
}

TEST_CASE("the mean of a loss over sharded rows is that over all rows that count") {
  struct Case {
    std::vector<std::int64_t> targets;
    const char* name;
  };
  const std::vector<Case> cases = {{{0, 4, 2, 3, 1, 1, 0}, "all rows count"},
                                   {{-7, 4, -7, 3, 1, -7, -7}, "some ranks have fewer"},
                                   {{-7, -7, -7, -7, 1, 1, 2}, "one rank has none"}};
  using Loss = Tensor (*)(const Tensor&, const Tensor&);
  const Loss losses[] = {[](const Tensor& x, const Tensor& t) {
                           return ops::nll_loss(ops::log_softmax(x, -1), t, ops::Reduction::mean,
                                                -7);
                         },
                         [](const Tensor& x, const Tensor& t) {
                           return ops::cross_entropy(x, t, {.ignore_index = -7});
                         }};
  for (const DeviceMesh& mesh : meshes()) {
    const Layout rows = mesh.ndim() == 1 ? Layout::make(mesh, {Shard(0)})
                                         : Layout::make(mesh, {Shard(0), Shard(0)});
    on_ranks(4, [&](int) {
      for (const Case& c : cases) {
        const Tensor targets = from_values(std::span<const std::int64_t>(c.targets), {7});
        for (const Loss loss : losses) {
          Tensor plain = numbers({7, 5});
          plain.set_requires_grad();
          const Tensor expected = loss(plain, targets);
          backward(expected);
          Tensor x = distribute(numbers({7, 5}), rows);
          x.set_requires_grad();
          const auto axes = static_cast<std::size_t>(mesh.ndim());
          const CommunicationReport report;
          const Tensor y = loss(x, distribute(targets, rows));
          check(y.layout() == Layout::make(mesh, std::vector<Placement>(axes, Partial())), c.name);
          check(report.entries().size() == axes && report.entries()[0].where == "counted_rows",
                report.to_string());
          check(near(to_doubles(whole(y)), to_doubles(expected)), c.name);
          backward(redistribute(y, Layout::replicated(mesh)));
          check(near(to_doubles(whole(x.grad())), to_doubles(plain.grad())),
                std::string("gradient: ") + c.name);
          // Whole targets are cut with the rows, and counted by every rank for itself.
          const CommunicationReport none;
          const Tensor z = loss(x, distribute(targets, Layout::replicated(mesh)));
          check(none.entries().empty() && near(to_doubles(whole(z)), to_doubles(expected)),
                none.to_string());
        }
      }
    });
  }
  CHECK(std::isnan(ops::nll_loss(numbers({2, 3}), from_values<std::int64_t>({-7, -7}, {2}),
                                 ops::Reduction::mean, -7)
                       .item()));
  const Tensor x = numbers({2, 3});
  const Tensor t = from_values<std::int64_t>({2, 0}, {2});
  CHECK(to_doubles(ops::cross_entropy(x, t, {.reduction = ops::Reduction::none})) ==
        to_doubles(ops::cross_entropy_rows(x, t)));
  CHECK(contains(error_of([&] { ops::counted_rows(x); }), "counted_rows: "));
}

TEST_CASE("rotary embeds each part of a sequence at its own positions, bit for bit") {
  on_ranks(4, [](int) {
    for (const DeviceMesh& mesh : meshes()) {
      for (const std::int64_t time : {8, 7, 5, 3}) {
        const Tensor x = numbers({2, time, 2, 6}, DType::f32);
        Tensor plain = ops::clone(x);
        plain.set_requires_grad();
        const Tensor expected = ops::rotary(plain, 100, 3);
        const Tensor g = numbers({2, time, 2, 6}, DType::f32, 2);
        backward({&expected, 1}, {&g, 1});
        std::vector<Layout> layouts;
        if (mesh.ndim() == 1) {
          layouts = {Layout::make(mesh, {Shard(1)})};
        } else {
          layouts = {Layout::make(mesh, {Shard(1), Shard(1)}),
                     Layout::make(mesh, {Shard(1), Shard(1)}, {1, 0}),
                     Layout::make(mesh, {Shard(1), Shard(2)}),
                     Layout::make(mesh, {Shard(0), Shard(1)})};
        }
        for (const Layout& layout : layouts) {
          Tensor part = distribute(x, layout);
          part.set_requires_grad();
          const CommunicationReport report;
          const Tensor y = ops::rotary(part, 100, 3);
          const Tensor dy = distribute(g, layout);
          backward({&y, 1}, {&dy, 1});
          check(report.entries().empty() && y.layout() == layout, "where it lies");
          check(values(y) == part_of(expected, layout), "values in " + to_string(layout));
          check(values(part.grad()) == part_of(plain.grad(), layout),
                "gradient in " + to_string(layout));
        }
      }
    }
  });
}

TEST_CASE("rotary takes the positions that are given, sharded as x is") {
  const std::vector<double> order = {0, 6, 1, 5, 2, 9, 3};  // dealt out from both ends
  const std::vector<double> rows = {0, 1, 2, 0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11};  // packed
  for (const std::vector<double>& list : {order, rows}) {
    const Dims shape = list.size() == 7 ? Dims{7} : Dims{2, 7};
    const Tensor positions =
        ops::cast(from_values(std::span<const double>(list), shape), DType::i64);
    const Tensor x = numbers({2, 7, 2, 6}, DType::f32);
    Tensor plain = ops::clone(x);
    plain.set_requires_grad();
    const Tensor expected = ops::rotary(plain, positions, 100);
    // Each time by itself, by its offset.
    for (int b = 0; b < 2; ++b) {
      for (int t = 0; t < 7; ++t) {
        const Tensor one = ops::narrow(ops::narrow(x, 0, b, 1), 1, t, 1);
        const auto at = static_cast<std::int64_t>(
            list.at(static_cast<std::size_t>(shape.size() == 1 ? t : 7 * b + t)));
        CHECK(to_doubles(ops::narrow(ops::narrow(detached(expected), 0, b, 1), 1, t, 1)) ==
              to_doubles(ops::rotary(one, 100, at)));
      }
    }
    backward({&expected, 1}, {&x, 1});
    for (const DeviceMesh& mesh : meshes()) {
      on_ranks(4, [&](int) {
        std::vector<std::vector<Placement>> ways = {{Shard(1)}, {Shard(0)}, {Shard(2)}};
        if (mesh.ndim() == 2) {
          ways = {{Shard(1), Shard(1)}, {Shard(0), Shard(1)}, {Shard(1), Shard(2)}};
        }
        for (const std::vector<Placement>& way : ways) {
          const Layout layout = Layout::make(mesh, way);
          Layout as_x = Layout::replicated(mesh);
          for (int axis = 0; axis < mesh.ndim(); ++axis) {
            if (layout.placement(axis).is_shard(1)) {
              as_x = as_x.with_placement(axis, Shard(positions.dims() - 1));
            } else if (layout.placement(axis).is_shard(0) && positions.dims() == 2) {
              as_x = as_x.with_placement(axis, Shard(0));
            }
          }
          Tensor part = distribute(x, layout);
          part.set_requires_grad();
          const CommunicationReport report;
          const Tensor y = ops::rotary(part, distribute(positions, as_x), 100);
          const Tensor dy = distribute(x, layout);
          backward({&y, 1}, {&dy, 1});
          check(report.entries().empty() && y.layout() == layout, "where it lies");
          check(values(y) == part_of(expected, layout), "values in " + to_string(layout));
          check(values(part.grad()) == part_of(plain.grad(), layout),
                "gradient in " + to_string(layout));
        }
      });
    }
  }
  const Tensor x = numbers({2, 3, 1, 4});
  CHECK(contains(error_of([&] { ops::rotary(x, from_values<std::int64_t>({0, -2, 1}, {3}), 10); }),
                 "rotary_at: position -2 is below 0 (number 1 of [3])"));
  CHECK(
      contains(error_of([&] { ops::rotary(x, from_values<std::int64_t>({0, 1}, {2}), 10); }),
               "rotary_at: the positions have the wrong shape (expected [3] or [2, 3], got [2])"));
}

TEST_CASE("each place of a list has its own layout") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  on_ranks(4, [&](int) {
    const Layout across = Layout::make(mesh, {Shard(0), Shard(0)}, {1, 0});
    const Layout along = Layout::make(mesh, {Shard(0), Shard(0)});
    const std::vector<Layout> layouts = {across, along, Layout::make(mesh, {Shard(1), Replicate()}),
                                         Layout::replicated(mesh)};
    const auto list = [&](double scale) {
      std::vector<Tensor> x;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        x.push_back(numbers({5, static_cast<std::int64_t>(i) + 2}, DType::f64, scale));
      }
      return x;
    };
    const auto laid = [](const std::vector<Tensor>& x, const std::vector<Layout>& in) {
      std::vector<Tensor> result;
      for (std::size_t i = 0; i < x.size(); ++i) {
        result.push_back(distribute(x[i], in[i]));
      }
      return result;
    };
    const std::vector<Tensor> plain = list(1);
    const std::vector<Tensor> x = laid(list(1), layouts);
    ops::foreach_add_(plain, list(2), 0.5);
    // The second list whole: each tensor is cut as the one that it goes to.
    ops::foreach_add_(x, laid(list(2), std::vector(4, Layout::replicated(mesh))), 0.5);
    const auto compare = [&](const char* what) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        check(x[i].layout() == layouts[i] && near(values(x[i]), part_of(plain[i], layouts[i])),
              what);
      }
    };
    compare("cut");
    // In other layouts it would have to be communicated: an error that names the tensor...
    const std::vector<Tensor> other =
        laid(list(3), {across, along, Layout::make(mesh, {Shard(0), Replicate()}), along});
    const std::vector<Tensor> third = laid(list(4), layouts);
    const std::string error = error_of([&] { ops::foreach_addcmul_(x, third, other, 0.5); });
    check(contains(error,
                   "foreach_addcmul_: operand 'tensors2[2]' f64[5, 4] [Shard(0), Replicate]") &&
              contains(error, "must be redistributed to [Shard(1), Replicate]"),
          error);
    compare("nothing is written");
    // ... or each is redistributed by itself.
    const CommunicationReport report;
    {
      const AllowRedistribution allow;
      ops::foreach_addcmul_(x, third, other, 0.5);
    }
    ops::foreach_addcmul_(plain, list(4), list(3), 0.5);
    compare("redistributed");
    check(report.count("all_to_all") == 1, report.to_string());
    for (const Communication& c : report.entries()) {
      check(c.implicit && c.where == "foreach_addcmul_", report.to_string());
    }
  });
}

TEST_CASE("unique finds the distinct values, where they are and how often they come") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::vector<double>> lists = {
      {3, -1, 3, 0, -0.0, 7, -1, 3},
      {2},
      {},
      {5, 5, 5},
      {nan, 1, nan, -std::numeric_limits<double>::infinity()}};
  for (const std::vector<double>& list : lists) {
    const auto size = static_cast<std::int64_t>(list.size());
    const Dims shape = size % 2 == 0 && size > 0 ? Dims{2, size / 2} : Dims{size};
    const Tensor x = from_values(std::span<const double>(list), shape);
    std::map<double, double> expected;
    std::size_t nans = 0;
    for (const double v : list) {
      std::isnan(v) ? static_cast<void>(++nans) : static_cast<void>(expected[v] += 1);
    }
    const ops::UniqueElements found = ops::unique(x, true, true);
    const std::vector<double> values = to_doubles(found.values);
    const std::vector<double> counts = to_doubles(found.counts);
    REQUIRE(values.size() == expected.size() + nans);
    REQUIRE(counts.size() == values.size());
    std::size_t at = 0;
    for (const auto& [value, count] : expected) {
      CHECK(values[at] == value);
      CHECK(counts[at++] == count);
    }
    for (; at < values.size(); ++at) {
      CHECK(std::isnan(values[at]));
      CHECK(counts[at] == 1);
    }
    CHECK(found.inverse.shape() == shape);
    const std::vector<double> inverse = to_doubles(found.inverse);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const double v = values.at(static_cast<std::size_t>(inverse[i]));
      CHECK((v == list[i] || (std::isnan(v) && std::isnan(list[i]))));
    }
  }
  for (const DType dtype : {DType::i64, DType::u8, DType::boolean, DType::bf16}) {
    const Tensor x = ops::cast(from_values<std::int64_t>({1, 0, 1, 1}, {4}), dtype);
    CHECK(ops::unique(x).values.dtype() == dtype);
    CHECK(to_doubles(ops::unique(x).values) == std::vector<double>{0, 1});
    CHECK_FALSE(ops::unique(x).inverse.defined());
    CHECK_FALSE(ops::unique(x).counts.defined());
  }
  const auto largest = std::numeric_limits<std::int64_t>::max();
  CHECK(ops::unique(from_values<std::int64_t>({largest, 1, largest}, {3})).values.numel() == 2);
  CHECK(contains(error_of([] { ops::unique(empty({3}, DType::f32, meta)); }),
                 "unique: the number of distinct elements depends on the data"));

  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor x = from_values<double>({3, 1, 3, 2}, {4});
    const ops::UniqueElements whole_one =
        ops::unique(distribute(x, Layout::replicated(mesh)), true, true);
    check(values(whole_one.values) == std::vector<double>{1, 2, 3}, "the values");
    check(values(whole_one.inverse) == std::vector<double>{2, 0, 2, 1}, "where");
    check(values(whole_one.counts) == std::vector<double>{1, 1, 2}, "how often");
    check(whole_one.values.layout().is_replicated(), "on every rank");
    const Tensor cut = distribute(x, Layout::make(mesh, {Shard(0)}));
    const std::string error = error_of([&] { ops::unique(cut); });
    check(contains(error, "unique: operand 'x' f64[4] [Shard(0)]") &&
              contains(error, "call redistribute(x, Layout::parse(mesh, \"[Replicate]\")) first"),
          error);
    const CommunicationReport report;
    const AllowRedistribution allow;
    check(values(ops::unique(cut).values) == std::vector<double>{1, 2, 3}, "gathered");
    check(report.count("all_gather") == 1, report.to_string());
  });
}

TEST_CASE("what two mesh axes bring to one dim is divided by both") {
  // A dim of 2 can be cut by each axis and not by both: [2, 3] cut so has no view of 6 elements.
  on_ranks(4, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
    const Tensor x = from_values<double>({1, 2, 3, 4, 5, 6}, {2, 3});
    for (const Placement second : {Shard(1), Replicate()}) {
      const Tensor cut = distribute(x, Layout::make(mesh, {Shard(1), second}));
      const AllowRedistribution allow;
      const Tensor flat = ops::reshape(cut, {6});
      check(values(redistribute(flat, Layout::replicated(mesh))) ==
                std::vector<double>{1, 2, 3, 4, 5, 6},
            to_string(flat.layout()));
    }
  });
}
