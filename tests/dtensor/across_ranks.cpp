// Reductions over sharded dims that the caller asks for (across_ranks), the loss with class weights
// and label smoothing, and calls with plain and distributed operands.
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
using dtensor_test::on_ranks;

namespace {

/// Of both signs, all different.
Tensor numbers(const Dims& shape, double shift = 0, DType dtype = DType::f64) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = 2 * std::sin(1.3 * static_cast<double>(i) + 0.2 + shift);
  }
  return ops::cast(x, dtype);
}

bool near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) {
    equal = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])) ||
            std::abs(a[i] - b[i]) <= tolerance * std::max(1.0, std::abs(b[i]));
  }
  return equal;
}

std::vector<double> values(const Tensor& x) {
  const NoGrad no_grad;
  return to_doubles(x.is_distributed() ? full_tensor(detached(x)) : x);
}

std::vector<Layout> layouts() {
  const DeviceMesh line = DeviceMesh::make({"a"}, {4});
  const DeviceMesh grid = DeviceMesh::make({"a", "b"}, {2, 2});
  return {
      Layout::make(line, {Shard(0)}),           Layout::make(line, {Shard(1)}),
      Layout::make(grid, {Shard(0), Shard(1)}), Layout::make(grid, {Shard(0), Shard(0)}, {1, 0}),
      Layout::make(grid, {Shard(0), Shard(0)}), Layout::make(grid, {Replicate(), Shard(1)})};
}

using Function = std::function<Tensor(const Tensor&)>;

/// A value, its gradient, and the gradient of the gradient; undefined where there is none.
struct Derivatives {
  Tensor value;
  Tensor first;
  Tensor second;
};

Derivatives differentiate(Tensor x, const Function& f) {
  const auto weighted = [](const Tensor& y, double shift) {
    const Tensor weights = numbers(y.shape(), shift, y.dtype());
    return ops::sum(ops::mul(
        y, y.is_distributed() ? distribute(weights, gradient_layout(y.layout())) : weights));
  };
  x.set_requires_grad();
  Derivatives d;
  d.value = f(x);
  if (!is_floating(d.value.dtype()) || !d.value.requires_grad()) {
    return d;
  }
  const Tensor loss = weighted(d.value, 3);
  const Tensor one = ops::ones_like(detached(loss));
  d.first = gradients({&loss, 1}, {&one, 1}, {&x, 1}, {.create_graph = true})[0];
  if (d.first.requires_grad()) {
    backward(weighted(d.first, 5));
    d.second = x.grad();
  }
  return d;
}

void compare(const char* what, const Tensor& got, const Tensor& wanted, double tolerance,
             const std::string& where) {
  check(got.defined() == wanted.defined(), where + ": " + what + " exists");
  if (wanted) {
    check(got.shape() == wanted.shape() && got.dtype() == wanted.dtype(),
          where + ": shape and type of " + what);
    check(near(values(got), values(wanted), tolerance), where + ": " + what);
  }
}

const std::map<std::string, Function>& reductions() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  static const std::map<std::string, Function> all = {
      {"logsumexp 0", [](const Tensor& x) { return ops::logsumexp(x, {0}, false, true); }},
      {"logsumexp 0 1", [](const Tensor& x) { return ops::logsumexp(x, {0, 1}, true, true); }},
      {"softmax 0", [](const Tensor& x) { return ops::softmax(x, 0, true); }},
      {"softmax 1", [](const Tensor& x) { return ops::softmax(x, -1, true); }},
      {"var 0", [](const Tensor& x) { return ops::var(x, {0}, true, 1, true); }},
      {"var 0 1", [](const Tensor& x) { return ops::var(x, {}, false, 0, true); }},
      {"std 1", [](const Tensor& x) { return ops::std(x, {1}, false, 1, true); }},
      {"norm 2", [](const Tensor& x) { return ops::norm(x, 2, {0}, false, true); }},
      {"norm 3", [](const Tensor& x) { return ops::norm(x, 3, {0, 1}, true, true); }},
      {"norm 1", [](const Tensor& x) { return ops::norm(x, 1, {1}, false, true); }},
      {"norm 0", [](const Tensor& x) { return ops::norm(x, 0, {1}, false, true); }},
      {"norm inf", [=](const Tensor& x) { return ops::norm(x, infinity, {0}, false, true); }},
      {"amax 0", [](const Tensor& x) { return ops::amax(x, {0}, false, true); }},
      {"amin 0 1", [](const Tensor& x) { return ops::amin(x, {}, true, true); }},
      {"topk 0", [](const Tensor& x) { return ops::topk(x, 2, 0, true, true).values; }},
      {"topk 1", [](const Tensor& x) { return ops::topk(x, 3, 1, false, true).values; }},
      {"argmax 0", [](const Tensor& x) { return ops::argmax(x, 0, false, true); }},
      {"argmin 1", [](const Tensor& x) { return ops::argmin(x, 1, true, true); }},
  };
  return all;
}

}  // namespace

TEST_CASE("reductions across ranks are those of the whole tensor, with their derivatives") {
  const auto [dtype, tolerance] =
      GENERATE(std::pair{DType::f64, 1e-10}, std::pair{DType::bf16, 0.03});
  on_ranks(4, [dtype, tolerance](int) {
    for (const Dims& shape : {Dims{7, 5}, Dims{2, 6}, Dims{8, 3}}) {
      for (const auto& [name, f] : reductions()) {
        const Derivatives plain = differentiate(numbers(shape, 0, dtype), f);
        for (const Layout& layout : layouts()) {
          const std::string where = name + " of " + to_string(shape) + " " + to_string(layout);
          const AllowRedistribution none;
          const Derivatives got = differentiate(distribute(numbers(shape, 0, dtype), layout), f);
          check(none.count() == 0, where + ": nothing is redistributed implicitly");
          for (int axis = 0; axis < layout.ndim(); ++axis) {
            check(!got.value.layout().placement(axis).is_partial(), where + ": the value is whole");
          }
          compare("value", got.value, plain.value, tolerance, where);
          compare("gradient", got.first, plain.first, tolerance, where);
          if (dtype == DType::f64) {
            compare("second derivative", got.second, plain.second, 1e-8, where);
          }
        }
      }
    }
  });
}

TEST_CASE("order across ranks: ties, infinities, not-a-number, integers and bool") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  const std::vector<std::vector<double>> rows = {
      {3, 1, 3, 3, 2, 1, 1, 0, 3},
      {-infinity, -infinity, -infinity, -infinity, -infinity, -infinity, -infinity, -infinity, 0},
      {infinity, 1, -infinity, infinity, 2, infinity, -infinity, 0, 3},
      {1, 2, nan, 0, nan, 5, -infinity, 4, infinity},
      {0, 1, 0, 0, 0, 1, 1, 1, 0}};
  on_ranks(4, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"a"}, {4});
    const Layout cut = Layout::make(mesh, {Shard(0)});
    for (const std::vector<double>& row : rows) {
      for (const DType dtype :
           {DType::f64, DType::f16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
        const Tensor x = ops::cast(from_values(std::span<const double>(row), {9}), dtype);
        const Tensor parts = distribute(x, cut);
        const std::string where = to_string(x);
        for (const bool largest : {true, false}) {
          const ops::ValuesAndIndices wanted = ops::topk(x, 7, 0, largest);
          const ops::ValuesAndIndices got = ops::topk(parts, 7, 0, largest, true);
          check(near(values(got.values), values(wanted.values), 0), where + ": topk's values");
          check(values(got.indices) == values(wanted.indices), where + ": topk's positions");
        }
        check(values(ops::argmax(parts, 0, false, true)) == values(ops::argmax(x, 0)),
              where + ": argmax");
        check(values(ops::argmin(parts, 0, true, true)) == values(ops::argmin(x, 0)),
              where + ": argmin");
        check(values(ops::argmax(parts, std::nullopt, false, true)) == values(ops::argmax(x)),
              where + ": argmax of all");
        check(near(values(ops::amax(parts, {}, false, true)), values(ops::amax(x)), 0),
              where + ": amax");
        check(near(values(ops::amin(parts, {0}, false, true)), values(ops::amin(x)), 0),
              where + ": amin");
      }
    }
  });
}

TEST_CASE("without a request, a reduction over a sharded dim is Partial or an error") {
  on_ranks(4, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"a"}, {4});
    const Tensor x = distribute(numbers({6, 3}), Layout::make(mesh, {Shard(0)}));
    for (const std::string& error :
         {error_of([&] { ops::logsumexp(x, {0}); }), error_of([&] { ops::softmax(x, 0); }),
          error_of([&] { ops::var(x, {0}); }), error_of([&] { ops::argmax(x, 0); }),
          error_of([&] { ops::topk(x, 2, 0); }), error_of([&] { ops::amax(x, {0}); })}) {
      check(contains(error, "must be redistributed"), error);
    }
    const Tensor y = ops::prod(x, {0});
    check(y.layout() == Layout::make(mesh, {Partial(ReduceOp::product)}), "prod is Partial");
    check(near(values(y), values(ops::prod(numbers({6, 3}), {0})), 1e-12), "the product");
    // What a request costs.
    const CommunicationReport report;
    ops::logsumexp(x, {0}, false, true);
    check(report.count("all_reduce") == 2 && report.entries().size() == 2, report.to_string());
    check(report.entries()[0].where == "amax" && report.entries()[1].where == "whole_sum",
          report.to_string());
  });
}

TEST_CASE("the logarithm of a sum without terms is -infinity across ranks too") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
    const Tensor none = zeros({0, 3}, DType::f64);
    const Tensor y =
        ops::logsumexp(distribute(none, Layout::make(mesh, {Shard(0)})), {0}, false, true);
    check(values(y) == values(ops::logsumexp(none, {0})), "as on one device");
    check(std::isinf(values(y)[0]) && values(y)[0] < 0, "-infinity");
  });
}

TEST_CASE("class weights and label smoothing of sharded rows and of a sharded vocabulary") {
  on_ranks(4, [](int) {
    const Tensor targets = from_values<std::int64_t>({4, 0, -7, 2, 1, 1, 6}, {7});
    const Tensor weight = ops::abs(numbers({9}, 2));
    const DeviceMesh grid = DeviceMesh::make({"a", "b"}, {2, 2});
    const DeviceMesh line = DeviceMesh::make({"a"}, {4});
    for (const Layout& layout :
         {Layout::make(line, {Shard(0)}), Layout::make(line, {Shard(1)}),
          Layout::make(grid, {Shard(0), Shard(1)}), Layout::make(grid, {Shard(1), Shard(1)})}) {
      for (const bool weighted : {false, true}) {
        for (const double smoothing : {0.0, 0.2}) {
          for (const ops::Reduction reduction :
               {ops::Reduction::none, ops::Reduction::sum, ops::Reduction::mean}) {
            const auto loss = [&](const Tensor& x) {
              const auto as_x = [&](const Tensor& t, const Layout& to) {
                return x.is_distributed() ? distribute(t, to) : t;
              };
              std::vector<Placement> rows;
              for (int axis = 0; axis < layout.ndim(); ++axis) {
                rows.push_back(layout.placement(axis) == Shard(0) ? Shard(0) : Replicate());
              }
              return ops::cross_entropy(
                  x, as_x(targets, Layout::make(layout.mesh(), rows)),
                  {.reduction = reduction,
                   .ignore_index = -7,
                   .label_smoothing = smoothing,
                   .weight = weighted ? as_x(weight, Layout::replicated(layout.mesh())) : Tensor(),
                   .loss_parallel = true});
            };
            const Derivatives plain = differentiate(numbers({7, 9}), loss);
            const AllowRedistribution none;
            const Derivatives got = differentiate(distribute(numbers({7, 9}), layout), loss);
            const std::string where = to_string(layout) + (weighted ? " weighted " : " ") +
                                      std::to_string(smoothing) + " " +
                                      std::to_string(static_cast<int>(reduction));
            check(none.count() == 0, where + ": nothing is redistributed implicitly");
            compare("value", got.value, plain.value, 1e-11, where);
            compare("gradient", got.first, plain.first, 1e-11, where);
            compare("second derivative", got.second, plain.second, 1e-9, where);
          }
        }
      }
    }
  });
}

TEST_CASE("a plain number meets distributed operands; other plain operands need a promise") {
  on_ranks(4, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"a"}, {4});
    const Layout cut = Layout::make(mesh, {Shard(0)});
    const Tensor number = full({}, 2.5, DType::f64);
    const Tensor mask = ops::gt(numbers({3}, 1), 0);
    Tensor x = distribute(numbers({6, 3}), cut);
    x.set_requires_grad();
    for (int round = 0; round < 2; ++round) {  // found, and found again
      const Tensor y = ops::mul(x, number);
      check(y.layout() == cut, "the layout of the other operand");
      check(values(y) == values(ops::mul_scalar(numbers({6, 3}), 2.5)), "the values");
    }
    backward(ops::sum(ops::square(ops::sub(x, number))));
    check(near(values(x.grad()), values(ops::mul_scalar(ops::add_scalar(numbers({6, 3}), -2.5), 2)),
               1e-14),
          "the gradient");
    check(values(ops::masked_fill(x, full({}, 1, DType::boolean), 4)) == std::vector<double>(18, 4),
          "a mask of one number");

    const std::string refused = error_of([&] { ops::masked_fill(x, mask, 0); });
    check(contains(refused, "masked_fill: operand 'mask' is plain") &&
              contains(refused, "PlainIsReplicate"),
          refused);
    {
      const PlainIsReplicate promise;
      const Tensor y = ops::masked_fill(x, mask, 0);
      check(y.layout() == cut && values(y) == values(ops::masked_fill(numbers({6, 3}), mask, 0)),
            "a promised mask");
    }
    check(contains(error_of([&] { ops::masked_fill(x, mask, 0); }), "is plain"),
          "the promise ends");
    Tensor learned = full({}, 2.5, DType::f64);
    learned.set_requires_grad();
    check(contains(error_of([&] { ops::mul(x, learned); }), "requires a gradient"), "a gradient");
    check(contains(error_of([&] { ops::add_(number, detached(x)); }), "add_: operand 'a'"),
          "a plain operand is not written");
    // An operand that another call does not have is not taken for absent.
    const PlainIsReplicate promise;
    const Tensor weight = distribute(numbers({2, 3}), Layout::replicated(mesh));
    const Tensor bias = numbers({2}, 4);
    const Tensor without = ops::linear(x, weight);
    check(values(ops::linear(x, weight, bias)) ==
              values(ops::linear(numbers({6, 3}), numbers({2, 3}), bias)),
          "a plain bias counts");
    check(values(without) == values(ops::linear(numbers({6, 3}), numbers({2, 3}))), "no bias");
  });
}
