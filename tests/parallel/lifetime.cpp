// How long a plan, its styles and its model live, and what is an error around them.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
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
import tessera.optim;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

DeviceMesh pair() { return DeviceMesh::make({"shard"}, {2}); }

/// A style whose hook refers to the style itself, as a plugin's author writes it.
class Doubling final : public parallel::ParallelStyle {
 public:
  explicit Doubling(int& alive) : alive_(alive) { ++alive_; }
  ~Doubling() override { --alive_; }
  parallel::StyleFacts facts() const override { return {}; }
  void apply(const parallel::StyleTarget& target) override {
    target.module.add_hook([this](nn::Module&, const Tensors&, Tensors& outputs) {
      outputs[0] = ops::mul_scalar(outputs[0], factor_);
    });
  }

 private:
  int& alive_;
  double factor_ = 2;
};

}  // namespace

TEST_CASE("a model may be used after its plan is gone") {
  const auto expected = plain(std::make_shared<Net>());
  for (const int seed : {1, 2}) {
    backward(plain_loss(*expected, net_tokens(4, seed)));
  }
  for (const bool reshard : {true, false}) {
    on_ranks(2, [&](int) {
      const auto model = std::make_shared<Net>();
      Layout layout = Layout::replicated(pair());
      {
        Planned run(model, pair(), {fsdp({"blocks.*", "."}, reshard)});
        layout = run.plan.batch_layout();
        backward(run.loss(net_tokens(4, 1)));
      }
      backward(ops::sum(ops::square((*model)(distribute(net_tokens(4, 2), layout)))));
      check(difference(gradients_of(*model), gradients_of(*expected)) < 1e-11, "gradients");
    });
  }
}

TEST_CASE("a graph may be differentiated after its model is gone") {
  const auto expected = plain(std::make_shared<Net>());
  backward(plain_loss(*expected, net_tokens(4, 1)));
  on_ranks(2, [&](int) {
    Tensor loss;
    nn::ParameterPointer kept;
    {
      Planned run(std::make_shared<Net>(), pair(), {fsdp({"blocks.*", "."})});
      kept = nn::all_parameters(*run.model)[2];
      loss = run.loss(net_tokens(4, 1));
    }
    backward(loss);
    check(difference(to_doubles(full_tensor(kept->value.grad())),
                     gradients_of(*expected).at(kept->name)) < 1e-11,
          "the gradient of " + kept->name);
  });
}

TEST_CASE("the model keeps any style alive, and only the model does") {
  int alive = 0;
  {
    const auto model = plain(std::make_shared<Net>());
    const double before = plain_loss(*model, net_tokens(2, 1)).item();
    {
      plugin::Host host({.paths = {}, .environment = false, .standard_places = false});
      host.add<parallel::ParallelStyle>(
          "Doubling", [&](parallel::Options&) { return std::make_unique<Doubling>(alive); });
      const parallel::ParallelPlan plan(*model, DeviceMesh::make({"one"}, {1}),
                                        {{"Doubling", "one", {"head"}, "{}", ""}}, host);
      CHECK(alive == 1);
    }
    CHECK(alive == 1);
    const Tensor tokens =
        distribute(net_tokens(2, 1), Layout::replicated(DeviceMesh::make({"one"}, {1})));
    const Tensor after = ops::sum(ops::square((*model)(tokens)));
    CHECK(full_tensor(detached(after)).item() == Approx(4 * before));
  }
  CHECK(alive == 0);
}

TEST_CASE("a model takes one plan") {
  const DeviceMesh mesh = pair();
  const auto planned = [&](nn::Module& model, const std::vector<parallel::StyleEntry>& entries) {
    return error_of(
        [&] { const parallel::ParallelPlan plan(model, mesh, entries, shipped_styles()); });
  };
  const std::string refused =
      "was given to a plan before, which may have failed; build a new model";
  Net twice;
  CHECK(planned(twice, {fsdp({"."})}) == "no error");
  CHECK(planned(twice, {fsdp({"."})}) == "parallel plan: the whole model " + refused);
  Net part;
  CHECK(planned(*part.children()[1].second, {fsdp({"."})}).find("matches no module") !=
        std::string::npos);  // its name is "blocks.0"; nothing was changed
  CHECK(planned(*part.children()[1].second, {fsdp({"blocks.0"})}) == "no error");
  CHECK(planned(*part.children()[1].second, {fsdp({"blocks.0"})}).find(refused) !=
        std::string::npos);
  CHECK(planned(part, {fsdp({"."})}) == "parallel plan: module 'blocks.0' " + refused);
  Net no_entries;
  CHECK(planned(no_entries, {}).find("no style uses axis 'shard'") != std::string::npos);
  CHECK(planned(no_entries, {fsdp({"."})}) == "no error");  // nothing was applied before
  nn::Dropout without_parameters(0.5);
  CHECK(planned(without_parameters, {fsdp({"."})}) == "no error");
  CHECK(planned(without_parameters, {fsdp({"."})}).find(refused) != std::string::npos);
}

TEST_CASE("a plan's calls in the wrong order") {
  on_ranks(2, [](int) {
    Net model;
    parallel::ParallelPlan plan(model, pair(), {fsdp({"blocks.*", "."})}, shipped_styles());
    plan.before_optimizer();  // nothing to wait for
    plan.materialize();
    const std::string error = error_of([&] { plan.materialize(); });
    check(error.find("materialize() was called twice") != std::string::npos, error);
  });
}

TEST_CASE("frozen parameters stay frozen under a plan, and may be frozen later") {
  on_ranks(2, [](int) {
    Planned run(std::make_shared<Net>(parallel_test::NetOptions{.frozen = {"blocks.0."}}), pair(),
                {fsdp({"blocks.*", "."})});
    for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
      check(p->value.requires_grad() == !p->name.starts_with("blocks.0."), p->name);
    }
    backward(run.loss(net_tokens(4, 1)));
    parallel_test::clear_gradients(*run.model);
    for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
      p->value.set_requires_grad(p->name.starts_with("blocks.0."));
    }
    backward(run.loss(net_tokens(4, 1)));
    for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
      check(p->value.grad().defined() == p->name.starts_with("blocks.0."), p->name);
    }
  });
}

TEST_CASE("an optimizer's step without any gradient is an error") {
  const auto model = plain(std::make_shared<Net>());
  const auto optimizer = optim::sgd(nn::all_parameters(*model), {});
  const std::string missing =
      "optimizer: none of the 10 parameters has a gradient; call backward() before step(), and "
      "zero_grad() after it";
  CHECK(error_of([&] { optimizer->step(0.1); }) == missing);
  backward(plain_loss(*model, net_tokens(4, 1)));
  CHECK(optim::global_gradient_norm(optimizer->parameters()) > 0);
  CHECK(error_of([&] { optimizer->step(0.1); }) == "no error");
  optimizer->zero_grad();
  CHECK(error_of([&] { optimizer->step(0.1); }) == missing);
  const auto nothing = optim::sgd({}, {});
  CHECK(error_of([&] { nothing->step(0.1); }) == "no error");
}
