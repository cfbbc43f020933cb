// First and second derivatives of every operator with small f64 samples against differences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "operator_samples.hpp"

using namespace tessera;
using namespace tessera::testing;
using conformance::CallSample;
using conformance::numbers;

namespace {

const OperatorSamples& all_samples() {
  static const OperatorSamples samples = read_operator_samples(TESSERA_REFERENCE_DATA);
  return samples;
}

bool is_small_and_differentiable(const OperatorSample& sample) {
  std::int64_t elements = 0;
  for (const Tensor& x : sample.inputs) {
    if (x && is_floating(x.dtype())) {
      elements += x.numel();
      const std::vector<double> v = to_doubles(x);
      if (x.dtype() != DType::f64 ||
          std::any_of(v.begin(), v.end(), [](double value) { return std::isinf(value); })) {
        return false;
      }
    }
  }
  const bool coarse = std::any_of(
      sample.outputs.begin(), sample.outputs.end(),
      [](const Tensor& y) { return is_floating(y.dtype()) && y.dtype() != DType::f64; });
  const bool used = std::any_of(sample.input_gradients.begin(), sample.input_gradients.end(),
                                [](const Tensor& g) { return g.defined(); });
  return used && !coarse && elements > 0 && elements <= 40;
}

/// How many elements were compared with differences, and how many were not, at kinks and jumps.
struct Tally {
  std::size_t compared = 0;
  std::size_t skipped = 0;
};
using Tallies = std::map<std::string, Tally>;  // by operator

CallSample call_of(const OperatorSample& sample) {
  return {.op = sample.op,
          .name = sample.name,
          .inputs = sample.inputs,
          .attributes = sample.attributes,
          .output_gradients = sample.output_gradients};
}

/// Compares the derivatives of this order with differences of those of the order before.
void check_derivatives(const OperatorSample& sample, int order, Tallies& tallies) {
  conformance::DerivativeAccount account;
  conformance::check_derivatives(call_of(sample), order, account);
  Tally& tally = tallies[sample.op->name];
  tally.compared += account.compared;
  tally.skipped += account.skipped;
  for (const std::string& finding : account.findings) {
    FAIL_CHECK(finding);
  }
}

/// Each operator was compared somewhere, and little was left out.
void check_tallies(const Tallies& tallies) {
  std::size_t compared = 0;
  std::size_t skipped = 0;
  for (const auto& [name, tally] : tallies) {
    INFO(name << ": " << tally.compared << " elements compared, " << tally.skipped << " at kinks");
    CHECK(tally.compared > 0);
    compared += tally.compared;
    skipped += tally.skipped;
  }
  INFO(compared << " elements compared, " << skipped << " at kinks");
  CHECK(!tallies.empty());
  CHECK(skipped * 10 < compared);
}

/// Notes what is differentiated, and what is constant though operands need gradients.
class GradientListener final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    const bool needed = std::any_of(call.in.begin(), call.in.end(),
                                    [](const Tensor& x) { return x && x.requires_grad(); });
    if (needed && is_floating(out[0].dtype())) {
      (call.op.backward != nullptr ? differentiated : constant).insert(call.op.name);
    }
    return out;
  }
  std::set<std::string> differentiated;
  std::set<std::string> constant;
};

/// Calls f while the listener hears all calls.
template <class F>
void listen(GradientListener& listener, F f) {
  const ModeScope scope(ModeLevel::above_distribution, listener);
  f();
}

/// What stored samples do not have: random numbers, masks that hide all, losses over a vocabulary
/// that may be sharded, zeros in products.
std::vector<OperatorSample> further_samples() {
  std::vector<OperatorSample> samples;
  const auto add = [&](const char* op, std::vector<Tensor> inputs, const std::string& arguments,
                       const Dims& result) {
    samples.push_back({.op = &find_op(op),
                       .name = std::string(op) + "/further" + std::to_string(samples.size()),
                       .inputs = std::move(inputs),
                       .attributes = parse_arguments(find_op(op), arguments),
                       .outputs = {},
                       .output_gradients = {numbers(result, 3)},
                       .input_gradients = {}});
  };
  constexpr double hidden = -std::numeric_limits<double>::infinity();
  const Tensor q = numbers({1, 2, 3, 2});
  const Tensor k = numbers({1, 1, 3, 2}, 1);
  const Tensor v = numbers({1, 1, 3, 2}, 2);
  const Tensor added =
      from_values<double>({0, -1, hidden, hidden, hidden, hidden, 2, 1, 0}, {3, 3});
  const Tensor mask =
      ops::cast(from_values<double>({1, 0, 1, 0, 0, 0, 1, 1, 1}, {3, 3}), DType::boolean);
  const char* const attention = "scaled_dot_product_attention";
  const std::string drawn = ", numbers=seed=7 stream=3 offset=8 run=0 stride=0, whole=none";
  add(attention, {q, k, v, added},
      "is_causal=false, lower_right=false, scale=0.5, dropout_p=0.4" + drawn, q.shape());
  add(attention, {q, k, v, added},
      "is_causal=true, lower_right=false, scale=0, dropout_p=0" + drawn, q.shape());
  add(attention, {q, k, v, mask},
      "is_causal=true, lower_right=true, scale=0, dropout_p=0.4" + drawn, q.shape());
  add("dropout", {numbers({6})}, "p=0.4" + drawn, {6});
  const Tensor logits = numbers({2, 2, 4});
  const Tensor targets = from_values<std::int64_t>({0, 3, -1, 2}, {2, 2});
  for (const char* parallel : {"loss_parallel=false", "loss_parallel=true"}) {
    const std::string loss = std::string("ignore_index=-1, whole=none, ") + parallel;
    add("cross_entropy", {logits, targets}, loss, {});
    add("cross_entropy_rows", {logits, targets}, loss, {2, 2});
    add("log_softmax", {logits}, std::string("dim=-1, ") + parallel, logits.shape());
  }
  const Tensor zeros_inside = from_values<double>({2, 0, -3, 1, 0, 0, 0.5, 4, -1, 3, 0, 2}, {3, 4});
  const std::string across = "across_ranks=true, whole=none";
  for (const int dim : {0, 1}) {
    const std::string along = "dim=" + std::to_string(dim);
    add("cumprod", {zeros_inside}, along, {3, 4});
    add("prod", {zeros_inside}, "dims=[" + std::to_string(dim) + "], keepdim=false",
        {dim == 0 ? 4 : 3});
    add("amax", {zeros_inside}, "dims=[" + std::to_string(dim) + "], keepdim=false, " + across,
        {dim == 0 ? 4 : 3});
    for (const char* extreme : {"amax_magnitude", "amin_magnitude"}) {
      add(extreme, {numbers({3, 4})},
          "dims=[" + std::to_string(dim) + "], keepdim=false, " + across, {dim == 0 ? 4 : 3});
    }
    add("topk_across_ranks", {numbers({3, 4})}, along + ", k=2, largest=true, whole=none",
        dim == 0 ? Dims{2, 4} : Dims{3, 2});
    add("logcumsumexp", {ops::mul_scalar(zeros_inside, 300)}, along, {3, 4});
    for (const char* recurrence : {"linear_recurrence", "linear_recurrence_from_end"}) {
      add(recurrence, {zeros_inside, numbers({3, 4})}, along, {3, 4});
    }
  }
  add("logcumsumexp", {from_values<double>({hidden, hidden, 1, hidden, 2}, {5})}, "dim=0", {5});
  add("clone", {numbers({3})}, "", {3});
  add("squared_norm", {numbers({3})}, "", {});
  add("linear_in_blocks", {numbers({3, 4}), numbers({6, 4}, 1)}, "out=2, in=4", {3, 6});
  add("linear_in_blocks_grad_input", {numbers({3, 6}), numbers({6, 4}, 1)}, "out=2, in=4", {3, 4});
  add("linear_in_blocks_grad_weight", {numbers({3, 6}), numbers({3, 4}, 1)}, "out=2, in=4", {6, 4});
  add("baddbmm", {numbers({3}), numbers({2, 2, 2}, 1), numbers({2, 2, 3}, 2)}, "beta=0.5, alpha=2",
      {2, 2, 3});
  add("as_strided", {numbers({6})}, "shape=[3, 3], strides=[1, 1], offset=1", {3, 3});
  return samples;
}

/// Those that differences can judge.
std::vector<OperatorSample> small_samples() {
  std::vector<OperatorSample> samples = further_samples();
  for (const OperatorSample& sample : all_samples().samples) {
    if (is_small_and_differentiable(sample)) {
      samples.push_back(sample);
    }
  }
  return samples;
}

template <class F>
void for_each_small_sample(F&& check) {
  for (const OperatorSample& sample : small_samples()) {
    INFO(sample.name << " " << sample.op->schema);
    try {
      check(sample);
    } catch (const std::exception& error) {
      FAIL_CHECK(sample.name << " throws: " << error.what());
    }
  }
}

/// Operators whose results are constants for a gradient that is differentiated again.
const std::map<std::string, std::string> constant_in_gradients = {
    {"detach", "made for that"},
    {"floor_divide", "constant but for its jumps"},
    {"ones_like", "takes no value of its operand"},
    {"zeros_like", "takes no value of its operand"},
};

/// Operators with a gradient whose second derivative no small sample here reaches.
const std::map<std::string, std::string> not_reached = {
    {"all_to_all_rows", "of several ranks: tests/ops/all_to_all_rows.cpp"},
    {"distribute", "of distributed tensors: tests/dtensor"},
    {"from_local", "of distributed tensors: tests/dtensor"},
    {"from_local_terms", "of distributed tensors: tests/dtensor"},
    {"mirror", "of several ranks: tests/ops/collective_ops.cpp"},
    {"redistribute", "of distributed tensors: tests/dtensor/redistribute.cpp"},
    {"redistribute_between", "of distributed tensors: tests/dtensor/redistribute.cpp"},
    {"rotary_at", "without a stored sample: tests/dtensor/operators.cpp"},
    {"rotary_at_inverse", "without a stored sample: tests/dtensor/operators.cpp"},
    {"shift", "of several ranks: tests/ops/collective_ops.cpp"},
    {"to_device", "between devices: tests/device/tensors.cpp"},
    {"to_local", "of distributed tensors: tests/dtensor"},
    {"whole_norm", "of distributed tensors: tests/dtensor/operators.cpp"},
    {"whole_sum", "of distributed tensors: tests/dtensor/across_ranks.cpp"},
};

std::set<std::string> names_of(const std::map<std::string, std::string>& reasons) {
  std::set<std::string> names;
  for (const auto& [name, reason] : reasons) {
    names.insert(name);
  }
  return names;
}

}  // namespace

TEST_CASE("gradients are the limits of differences") {
  Tallies tallies;
  for_each_small_sample(
      [&](const OperatorSample& sample) { check_derivatives(sample, 1, tallies); });
  check_tallies(tallies);
}

TEST_CASE("each floating result has a gradient that differences confirm, or refuses one") {
  Tallies tallies;
  std::set<std::string> refusing;
  for_each_small_sample([&](const OperatorSample& sample) {
    const Tensors out = call(*sample.op, sample.inputs, sample.attributes);
    for (std::size_t i = 0; i < out.size() && out.size() > 1; ++i) {
      if (!is_floating(out[i].dtype())) {
        continue;
      }
      OperatorSample of_one = sample;
      of_one.output_gradients.assign(out.size(), {});
      of_one.output_gradients[i] = ops::cast(numbers(out[i].shape(), 2), out[i].dtype());
      INFO("result " << i);
      try {
        check_derivatives(of_one, 1, tallies);
      } catch (const Error& error) {
        INFO(error.what());
        CHECK(std::string(error.what())
                  .starts_with(sample.op->name + ": result " + std::to_string(i) +
                               " has no gradient"));
        refusing.insert(sample.op->name + " " + std::to_string(i));
      }
    }
  });
  check_tallies(tallies);
  // The logarithms of the sums of exponentials, which the backward needs.
  CHECK(refusing == std::set<std::string>{"causal_attention 1", "scaled_dot_product_attention 1"});
}

TEST_CASE("gradients of gradients are the limits of differences") {
  GradientListener listener;
  Tallies tallies;
  for_each_small_sample([&](const OperatorSample& sample) {
    listen(listener, [&] { check_derivatives(sample, 2, tallies); });
  });
  check_tallies(tallies);
  CHECK(listener.constant == names_of(constant_in_gradients));
  std::set<std::string> left;
  for (const Op* op : all_ops()) {
    if (op->backward != nullptr && !op->in_place && op->form_of == nullptr &&
        !listener.differentiated.contains(op->name)) {
      left.insert(op->name);
    }
  }
  CHECK(left == names_of(not_reached));
}

namespace {

/// Operators whose gradient is a kernel of its own, with a gradient that is composed of others.
const std::set<std::string> with_own_kernel = {
    "layer_norm",        "rms_norm",     "log_softmax",  "cross_entropy",
    "embedding",         "gather",       "index_select", "index",
    "cumprod",           "logcumsumexp", "prod",         "causal_attention",
    "as_strided",        "swiglu",       "max_pool2d",   "scaled_dot_product_attention",
    "cross_entropy_rows"};

template <class F>
void for_each_own_kernel(F&& check) {
  std::map<std::string, int> seen;
  for_each_small_sample([&](const OperatorSample& sample) {
    if (with_own_kernel.contains(sample.op->name) && ++seen[sample.op->name] <= 6) {
      check(sample);
    }
  });
  CHECK(seen.size() == with_own_kernel.size());
}

/// The floating tensors in another type.
std::vector<Tensor> converted(const std::vector<Tensor>& tensors, DType dtype) {
  std::vector<Tensor> result;
  result.reserve(tensors.size());
  for (const Tensor& x : tensors) {
    result.push_back(x && is_floating(x.dtype()) ? ops::cast(x, dtype) : x);
  }
  return result;
}

}  // namespace

TEST_CASE("third derivatives are the limits of differences") {
  Tallies tallies;
  for_each_own_kernel([&](const OperatorSample& sample) { check_derivatives(sample, 3, tallies); });
  check_tallies(tallies);
}

TEST_CASE("second derivatives of narrow types are those of f64 but for rounding") {
  const auto [dtype, allowed] = GENERATE(std::pair{DType::f32, 1e-4}, std::pair{DType::bf16, 0.1},
                                         std::pair{DType::f16, 0.02});
  for_each_own_kernel([dtype, allowed](const OperatorSample& stored) {
    const CallSample sample = call_of(stored);
    CallSample narrow = sample;
    narrow.inputs = converted(sample.inputs, dtype);
    CallSample exact = sample;
    exact.inputs = converted(narrow.inputs, DType::f64);
    // Losses are of a wider type than their operands.
    const Tensors out = call(*sample.op, narrow.inputs, sample.attributes);
    for (std::size_t i = 0; i < narrow.output_gradients.size(); ++i) {
      Tensor& weight = narrow.output_gradients[i];
      weight = weight ? ops::cast(weight, out[i].dtype()) : weight;
    }
    const std::vector<Tensor> variables = fresh_variables(narrow, 2);
    const std::vector<Tensor> found = derivatives(narrow, variables, 2);
    const std::vector<Tensor> wanted = derivatives(exact, fresh_variables(exact, 2), 2);
    for (std::size_t i = 0; i < found.size(); ++i) {
      REQUIRE(found[i].defined() == wanted[i].defined());
      if (!found[i]) {
        continue;
      }
      CHECK(found[i].dtype() == variables[i].dtype());
      const std::vector<double> f = to_doubles(found[i]);
      const std::vector<double> w = to_doubles(wanted[i]);
      const double scale = std::accumulate(w.begin(), w.end(), 1.0, [](double most, double value) {
        return std::max(most, std::abs(value));
      });
      for (std::size_t k = 0; k < f.size(); ++k) {
        INFO("operand " << i << ", element " << k << ": " << f[k] << " against " << w[k]);
        CHECK(std::abs(f[k] - w[k]) <= allowed * scale);
      }
    }
  });
}
