// A mixture of experts on ranks that are threads against the plain one: results, terms of the
// loss, gradients, loads and biases, also where ranks have no tokens.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using Values = std::vector<double>;
constexpr std::int64_t dim = 6;
constexpr std::int64_t rows = 4;
constexpr std::int64_t tokens = 6;

nn::MixtureOptions small_mixture() {
  return {.expert = {.dim = dim, .width = 4, .standard_deviation = 0.3, .dtype = DType::f64},
          .experts = 8,
          .experts_per_token = 2,
          .shared_width = 5,
          .shared_gate = true};
}

const nn::BalanceOptions kBalance{.loss = 0.3, .z_loss = 0.2, .bias_rate = 0.01, .capacity = 1.1};

struct Outcome {
  Values y, terms, bias;
  Named gradients;
};

Values whole(const Tensor& x) { return to_doubles(x.is_distributed() ? full_tensor(x) : x); }

/// Two steps' outputs, gradients of a loss of both, and the bias afterwards.
Outcome outcome_of(nn::SparseMixture& mixture, const Layout& batch) {
  Values x;
  for (std::int64_t i = 0; i < rows * tokens * dim; ++i) {
    x.push_back(1 + std::sin(static_cast<double>(i * i)));
  }
  Tensor hidden = from_values(std::span<const double>(x), {rows, tokens, dim});
  if (batch) {
    hidden = distribute(hidden, batch);
  }
  Outcome found;
  for (int step = 0; step < 2; ++step) {
    clear_gradients(mixture);
    const Tensors out = mixture(Tensors{hidden});
    found.y = whole(out[0]);
    Tensor loss = ops::sum(ops::mul(out[0], out[0]));
    if (out.size() > 1) {
      found.terms = whole(out[1]);
      loss = ops::add(loss, ops::sum(out[1]));
    }
    backward(loss);
    nn::end_step(mixture);
  }
  found.gradients = gradients_of(mixture);
  if (mixture.bias() != nullptr) {
    found.bias = to_doubles(local_of(mixture.bias()->value));
  }
  return found;
}

/// Everything to one expert of each token's two, if `expert` >= 0: their rows of the router are
/// the largest for inputs above 0.
void point_to(nn::SparseMixture& mixture, int expert) {
  if (expert < 0) {
    return;
  }
  Named values = values_of(mixture);
  Values& gate = values.at("gate.weight");
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = i / dim == static_cast<std::size_t>(expert) ? 2 : 0.1 * gate[i];
  }
  write_values(mixture, values);
}

double largest(const Values& a, const Values& b) {
  double found = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    found = std::max(found, std::abs(a[i] - b[i]));
  }
  return found;
}

struct Case {
  std::vector<std::string> axes;
  Dims shape;
  std::vector<parallel::StyleEntry> entries;
};

std::vector<Case> cases() {
  const auto experts = [](const char* axis) {
    return parallel::StyleEntry{"ExpertParallel", axis, {"experts"}};
  };
  // Its ranks share rows, below.
  const parallel::StyleEntry replicated{"Replicate", "sequence", {"."}};
  return {{{"a"}, {2}, {experts("a")}},
          {{"a"}, {4}, {experts("a")}},
          {{"a", "b"}, {2, 2}, {experts("a"), experts("b")}},
          {{"a", "b"}, {2, 2}, {experts("b"), experts("a")}},
          {{"a", "t"}, {2, 2}, {experts("a"), {"RowwiseParallel", "t", {"experts"}}}},
          {{"sequence"}, {2}, {replicated}},
          {{"sequence", "a"}, {2, 2}, {replicated, experts("a")}}};
}

void agrees(const nn::MixtureOptions& options, const nn::BalanceOptions& balance, int expert) {
  const auto made = [&] {
    auto mixture = std::make_shared<nn::SparseMixture>(options);
    mixture->set_names();
    nn::balance_experts(*mixture, balance);
    return mixture;
  };
  const auto one_rank = plain(made());
  auto& alone = dynamic_cast<nn::SparseMixture&>(*one_rank);
  point_to(alone, expert);
  const Outcome expected = outcome_of(alone, {});
  REQUIRE(expected.terms.size() == (balance.loss > 0 ? rows : 0));
  for (const Case& one : cases()) {
    const int ranks = static_cast<int>(one.shape.product());
    on_ranks(ranks, [&](int rank) {
      Planned split(made(), DeviceMesh::make(one.axes, one.shape), one.entries);
      auto& mixture = dynamic_cast<nn::SparseMixture&>(*split.model);
      point_to(mixture, expert);
      const Layout batch = split.plan.batch_layout();
      const bool shares = one.axes[0] == "sequence";
      const Outcome found = outcome_of(mixture, shares ? batch.with_placement(0, Shard(1)) : batch);
      check(largest(found.y, expected.y) < 1e-12, "results");
      check(largest(found.terms, expected.terms) < 1e-12, "terms");
      check(found.bias == expected.bias, "biases");
      check(difference(found.gradients, expected.gradients) < 1e-10, "gradients");
      if (expert >= 0 && rank == 0 && ranks == 4 && one.axes.size() == 1) {
        // Those of rank 0's row: each chose the expert, which is elsewhere.
        const Values counted = to_doubles(ops::cast(local_of(mixture.tokens()->value), DType::f64));
        check(counted[static_cast<std::size_t>(expert)] == 2.0 * tokens, "tokens of the expert");
      }
    });
  }
}

}  // namespace

TEST_CASE("experts on several axes compute what one rank computes") {
  agrees(small_mixture(), {}, -1);
  agrees(small_mixture(), kBalance, -1);
}

TEST_CASE("a rank without tokens of its experts is no special case") {
  nn::MixtureOptions options = small_mixture();
  options.experts_per_token = 1;
  agrees(options, {}, 5);
  agrees(options, {.loss = 0.3, .bias_rate = 0.01}, 5);
  agrees(options, {.loss = 0.3, .capacity = 2}, 5);  // three of four tokens have no expert
}

TEST_CASE("sigmoid scores, groups and a scale are those of one rank") {
  nn::MixtureOptions options = small_mixture();
  options.score = nn::RouterScore::sigmoid;
  options.scale = 1.5;
  options.groups = 4;
  options.groups_per_token = 2;
  options.shared_gate = false;
  options.bias = true;
  agrees(options, kBalance, -1);
}

namespace {

/// How many products of matrices are computed between the issue of each exchange of rows and its
/// wait.
class ProductsBesideRows final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    const std::string name = call.op.name;
    blocking += name == "all_to_all_rows" ? 1 : 0;
    products_ += name.starts_with("linear") ? 1 : 0;
    if (name == "wait" && issued_.contains(&call.in[0].storage())) {
      beside.push_back(products_ - issued_.extract(&call.in[0].storage()).mapped());
    }
    Tensors out = next(call);
    if (name == "all_to_all_rows_async") {
      issued_[&out[0].storage()] = products_;
    }
    return out;
  }

  std::vector<int> beside;  // in the order of the waits
  int blocking = 0;

 private:
  int products_ = 0;
  std::map<const Storage*, int> issued_;
};

}  // namespace

TEST_CASE("the expert of all tokens is computed beside the exchanges of rows") {
  for (const bool shared : {true, false}) {
    on_ranks(2, [&](int) {
      nn::MixtureOptions options = small_mixture();
      options.shared_width = shared ? 5 : 0;
      auto mixture = std::make_shared<nn::SparseMixture>(options);
      mixture->set_names();
      Planned split(mixture, DeviceMesh::make({"a"}, {2}), cases()[0].entries);
      Tensor hidden =
          distribute(full({rows, tokens, dim}, 0.5, DType::f64), split.plan.batch_layout());
      hidden.set_requires_grad();
      ProductsBesideRows exchanges;
      {
        const ModeScope scope(ModeLevel::below_distribution, exchanges);
        const Tensor y = (*mixture)(hidden);
        backward(ops::sum(ops::mul(y, y)));
      }
      check(exchanges.blocking == 0, "exchanges that block");
      // Two projections beside the way to the experts, and one, with the gate's, beside the way
      // back; then the same in backward, from the end, with gradients of inputs and of weights.
      const std::vector<int> expected =
          shared ? std::vector<int>{2, 2, 4, 4} : std::vector<int>{0, 0, 0, 0};
      std::string got;
      for (const int products : exchanges.beside) {
        got += std::to_string(products) + " ";
      }
      check(exchanges.beside == expected, got);
    });
  }
}

namespace {

/// Of one rank, whose router sends tokens with a first number above 0 to expert 1, others to 0.
std::shared_ptr<nn::SparseMixture> two_ways(const nn::BalanceOptions& balance) {
  nn::MixtureOptions options = small_mixture();
  options.experts_per_token = 1;
  options.shared_width = 0;
  auto mixture = std::make_shared<nn::SparseMixture>(options);
  mixture->set_names();
  nn::balance_experts(*mixture, balance);
  nn::materialize(*mixture);
  set_seed(7);
  nn::initialize(*mixture);
  Named values = values_of(*mixture);
  Values& gate = values.at("gate.weight");
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = i == 0 ? -1 : i == dim ? 1 : 0;
  }
  write_values(*mixture, values);
  return mixture;
}

/// One sequence of tokens, each with this number in all places.
Tensor sequence(const Values& numbers) {
  Values x;
  for (const double number : numbers) {
    x.insert(x.end(), dim, number);
  }
  return from_values(std::span<const double>(x),
                     {1, static_cast<std::int64_t>(numbers.size()), dim});
}

Values counts(const nn::BufferPointer& buffer) {
  return to_doubles(ops::cast(buffer->value, DType::f64));
}

}  // namespace

TEST_CASE("a capacity keeps the first tokens of each sequence") {
  // Eight experts and eight tokens: an expert takes two.
  const auto limited = two_ways({.capacity = 2});
  const auto unlimited = two_ways({});
  const Tensor x = sequence({1, 1, 1, -1, 1, -1, -1, 1});
  const Values kept = to_doubles((*limited)(x));
  const Values all = to_doubles((*unlimited)(x));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::size_t token = i / dim;
    const bool stays = token == 0 || token == 1 || token == 3 || token == 5;
    CHECK(kept[i] == (stays ? all[i] : 0));
    CHECK(all[i] != 0);
  }
  CHECK(counts(limited->tokens()) == Values{3, 5, 0, 0, 0, 0, 0, 0});
  CHECK(counts(limited->dropped()) == Values{4});
  limited->train(false);
  CHECK(to_doubles((*limited)(x)) == all);  // evaluations have no limit, and do not count
  CHECK(counts(limited->dropped()) == Values{4});
}

TEST_CASE("the bias of an expert with too few tokens grows") {
  const auto mixture = two_ways({.bias_rate = 0.25});
  const auto bias = [&] { return to_doubles(mixture->bias()->value); };
  (*mixture)(sequence({1, 1, 1, -1, 1, -1, -1, 1}));
  nn::end_step(*mixture);  // the mean is 1
  CHECK(bias() == Values{-0.25, -0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25});
  nn::end_step(*mixture);  // no token: all have the mean
  CHECK(bias() == Values{-0.25, -0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25});
  (*mixture)(sequence({9, 9}));  // too sure for the bias
  nn::end_step(*mixture);
  CHECK(bias() == Values{0, -0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
}

TEST_CASE("what backward computes again is not counted") {
  const auto mixture = two_ways({.loss = 0.1});
  const Tensors in{sequence({1, 1, 1, -1})};
  const Tensors out =
      checkpoint([&](std::span<const Tensor> again) { return (*mixture)(Tensors{again[0]}); }, in);
  backward(ops::add(ops::sum(out[0]), ops::sum(out[1])));
  CHECK(counts(mixture->tokens()) == Values{1, 3, 0, 0, 0, 0, 0, 0});
}
