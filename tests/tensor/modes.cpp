// Modes receive operators before they happen: what they may do with them, in which order, and what
// is left when something throws.
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

using namespace tessera;
using tessera::testing::error_of;

namespace {

constexpr ModeLevel above = ModeLevel::above_distribution;
constexpr ModeLevel below = ModeLevel::below_distribution;

using Names = std::vector<std::string>;

/// Runs every operator and writes its name down first; throws before those of one name.
class Recorder final : public Mode {
 public:
  explicit Recorder(std::string refused = {}) : refused_(std::move(refused)) {}
  Tensors call(const Call& call, NextCall& next) override {
    names.push_back(call.op.name);
    if (call.op.name == refused_) {
      fail("the mode refuses");
    }
    return next(call);
  }
  Names names;

 private:
  std::string refused_;
};

/// A mode of functions.
class Custom final : public Mode {
 public:
  using Function = std::function<Tensors(const Call&, NextCall&)>;
  explicit Custom(Function f) : f_(std::move(f)) {}
  Tensors call(const Call& call, NextCall& next) override { return f_(call, next); }

 private:
  Function f_;
};

/// Its kernel calls another operator.
const Op& calls_neg = register_op(
    {.schema = "calls_neg_of_tests(x)",
     .infer = [](const Call& call,
                 ResultShapes& out) { out.push_back({call.in[0].shape(), call.in[0].dtype()}); },
     .cpu = [](const Call& call,
               std::span<Tensor> out) { ops::copy_(out[0], ops::neg(call.in[0])); },
     .about = "An operator of the tests."});

Tensor numbers() { return from_values<double>({1, -2, 3, 4}, {2, 2}); }

}  // namespace

TEST_CASE("a mode sees operators before they run, also those that fail") {
  for (const ModeLevel level : {above, below}) {
    Recorder recorder;
    const ModeScope scope(level, recorder);
    const Tensor x = zeros({2, 3});
    CHECK(error_of([&] { call(find_op("mm"), {x, x}); }) != "no error");
    call(find_op("exp"), {x});
    CHECK(recorder.names == Names{"mm", "exp"});
  }
}

TEST_CASE("an operator that a mode does not run has no effect") {
  for (const ModeLevel level : {above, below}) {
    Custom skip([](const Call& c, NextCall&) { return Tensors{c.in[0]}; });
    const Tensor x = numbers();
    {
      const ModeScope scope(level, skip);
      ops::fill_(x, 7);
    }
    CHECK(to_doubles(x) == std::vector<double>{1, -2, 3, 4});
    ops::fill_(x, 7);
    CHECK(to_doubles(x) == std::vector<double>{7, 7, 7, 7});
  }
}

TEST_CASE("a mode replaces operators, operands and results") {
  const Tensor x = numbers();
  for (const ModeLevel level : {above, below}) {
    Custom other([](const Call& c, NextCall& next) {
      return next(c.op.name == "abs" ? find_op("neg") : c.op, c.in, c.attributes);
    });
    Custom twice([](const Call& c, NextCall& next) {
      const Tensors once = next(c);
      return next(c.op, std::vector<Tensor>(once.begin(), once.end()), c.attributes);
    });
    Custom given([](const Call&, NextCall&) { return Tensors{full({2, 2}, 9, DType::f64)}; });
    const auto result = [&](Mode& mode, const char* op) {
      const ModeScope scope(level, mode);
      return to_doubles(call_one(find_op(op), {x}));
    };
    CHECK(result(other, "abs") == std::vector<double>{-1, 2, -3, -4});
    CHECK(result(twice, "neg") == std::vector<double>{1, -2, 3, 4});
    CHECK(result(given, "exp") == std::vector<double>{9, 9, 9, 9});
  }
}

TEST_CASE("results that a mode replaces are differentiated as the operator's own") {
  Custom doubled([](const Call& c, NextCall& next) {
    Tensors out = next(c);
    if (c.op.name == "mul") {
      out[0] = ops::mul_scalar(out[0], 10);
    }
    return out;
  });
  Tensor x = numbers();
  x.set_requires_grad();
  const ModeScope scope(above, doubled);
  const Tensor y = ops::mul(x, numbers());
  CHECK(to_doubles(y) == std::vector<double>{10, 40, 90, 160});
  const Tensor seed = full({2, 2}, 1, DType::f64);
  backward({&y, 1}, {&seed, 1});
  // The backward of mul calls mul, whose results are replaced as well.
  CHECK(to_doubles(x.grad()) == std::vector<double>{10, -20, 30, 40});
}

TEST_CASE("results of another shape, type or number are refused") {
  const Tensor x = numbers();
  Custom shape([](const Call&, NextCall&) { return Tensors{zeros({3}, DType::f64)}; });
  Custom type(
      [](const Call& c, NextCall& next) { return Tensors{ops::cast(next(c)[0], DType::f32)}; });
  Custom none([](const Call&, NextCall&) { return Tensors{}; });
  for (const ModeLevel level : {above, below}) {
    const auto error = [&](Mode& mode) {
      const ModeScope scope(level, mode);
      return error_of([&] { call(find_op("exp"), {x}); });
    };
    CHECK(error(shape) ==
          "exp: the results that a mode returns are wrong (expected f64[2, 2], got f64[3]); return "
          "what the operator would return");
    CHECK(error(type).find("expected f64[2, 2], got f32[2, 2]") != std::string::npos);
    CHECK(error(none).find("expected f64[2, 2], got none") != std::string::npos);
  }
}

TEST_CASE("operands that a mode changes are compared with the operator's schema") {
  Custom fewer(
      [](const Call& c, NextCall& next) { return next(c.op, c.in.first(1), c.attributes); });
  const ModeScope scope(above, fewer);
  const std::string error = error_of([] { ops::mul(numbers(), numbers()); });
  CHECK(error.find("mul: wrong number of operands (expected 2, got 1)") == 0);
}

TEST_CASE("the mode that was installed last is asked first, and above distribution before below") {
  Names order;
  const auto noting = [&order](const char* name) {
    return [&order, name](const Call& c, NextCall& next) {
      order.push_back(std::string(name) + " begins");
      Tensors out = next(c);
      order.push_back(std::string(name) + " ends");
      return out;
    };
  };
  Custom first(noting("first"));
  Custom second(noting("second"));
  Custom under(noting("under"));
  const ModeScope under_scope(below, under);
  const ModeScope first_scope(above, first);
  const ModeScope second_scope(above, second);
  ops::neg(numbers());
  CHECK(order == Names{"second begins", "first begins", "under begins", "under ends", "first ends",
                       "second ends"});
}

TEST_CASE("what a mode calls itself reaches the modes below it only") {
  Recorder bottom;
  Recorder beneath;
  Custom calling([](const Call& c, NextCall& next) {
    ops::exp(c.in[0]);
    return next(c);
  });
  Recorder top;
  const ModeScope bottom_scope(below, bottom);
  const ModeScope beneath_scope(above, beneath);
  const ModeScope calling_scope(above, calling);
  const ModeScope top_scope(above, top);
  ops::neg(numbers());
  CHECK(top.names == Names{"neg"});
  CHECK(beneath.names == Names{"exp", "neg"});
  CHECK(bottom.names == Names{"exp", "neg"});
}

TEST_CASE("an operator is one piece: modes do not see what its kernel calls") {
  for (const ModeLevel level : {above, below}) {
    Recorder recorder;
    const ModeScope scope(level, recorder);
    CHECK(to_doubles(call_one(calls_neg, {numbers()})) == std::vector<double>{-1, 2, -3, -4});
    CHECK(recorder.names == Names{"calls_neg_of_tests"});
  }
}

TEST_CASE("a mode within a mode ends with its scope") {
  Recorder inner;
  Custom outer([&](const Call& c, NextCall& next) {
    const ModeScope scope(above, inner);
    ops::exp(c.in[0]);
    return next(c);
  });
  const ModeScope scope(above, outer);
  ops::neg(numbers());
  ops::abs(numbers());
  CHECK(inner.names == Names{"exp", "neg", "exp", "abs"});
}

TEST_CASE("the stack is whole after a mode, an operator or a scope has thrown") {
  for (const ModeLevel level : {above, below}) {
    Recorder lower;
    Recorder refusing("exp");
    const ModeScope lower_scope(level, lower);
    {
      const ModeScope scope(level, refusing);
      CHECK(error_of([] { ops::exp(numbers()); }) == "the mode refuses");
      CHECK(error_of([] { call(find_op("mm"), {zeros({2, 3}), zeros({2, 3})}); }) != "no error");
      ops::neg(numbers());
    }
    CHECK(error_of([&] {
            Recorder narrow;
            const ModeScope scope(level, narrow);
            fail("out");
          }) == "out");
    ops::abs(numbers());
    CHECK(refusing.names == Names{"exp", "mm", "neg"});
    CHECK(lower.names == Names{"mm", "neg", "abs"});
  }
}

TEST_CASE("a mode is installed in one place at a time") {
  Recorder recorder;
  {
    const ModeScope scope(above, recorder);
    CHECK(error_of([&] { const ModeScope again(below, recorder); }) ==
          "mode: it is installed already; a mode is at one level of one thread at a time (use an "
          "object for each)");
    ops::neg(numbers());
  }
  const ModeScope scope(below, recorder);
  ops::abs(numbers());
  CHECK(recorder.names == Names{"neg", "abs"});
}

TEST_CASE("modes are those of their thread") {
  Recorder here;
  Recorder there;
  const ModeScope scope(above, here);
  std::thread([&] {
    CHECK_FALSE(modes_installed());
    const ModeScope other(above, there);
    ops::exp(numbers());
  }).join();
  ops::neg(numbers());
  CHECK(here.names == Names{"neg"});
  CHECK(there.names == Names{"exp"});
}

TEST_CASE("modes see the operators of backward") {
  Recorder recorder;
  Tensor x = numbers();
  x.set_requires_grad();
  const Tensor y = ops::sum(ops::exp(x));
  const ModeScope scope(above, recorder);
  backward(y);
  CHECK(recorder.names.front() == "ones_like");
  CHECK(recorder.names.back() == "exp_backward");
}
