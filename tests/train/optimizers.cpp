// What optimizers keep, in checkpoints: every rule continues bit by bit, and its state has a
// meaning in other layouts too.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.optim;
import tessera.parallel;

#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using train_test::Folder;
using train_test::layout_named;
using train_test::Layouts;
using train_test::on_layout;
using train_test::same_state;

namespace {

constexpr std::int64_t rows = 8;

struct Run {
  Run(const DeviceMesh& mesh, const Layouts& layout, const std::string& rule)
      : net(std::make_shared<Net>(NetOptions{}), mesh, layout.styles),
        training(*net.model, net.plan,
                 std::make_unique<optim::Optimizer>(
                     nn::all_parameters(*net.model), optim::load_rule(rule),
                     optim::OptimizerOptions{.weight_decay = 0.1,
                                             .groups = {{.on = {"head.*"},
                                                         .lr_scale = 0.5,
                                                         .rule = optim::load_rule("lion")}}}),
                 {.lr = 0.02}, 1) {}

  double step() {
    return training
        .step({.rows = rows, .weight = 24},
              [&](const BatchPart& m) {
                const Tensor all = net_tokens(rows, static_cast<int>(m.step));
                const Tensor mine = ops::contiguous(ops::narrow(all, 0, m.first, m.rows));
                return ops::sum(ops::square(
                    (*net.model)(from_local(mine, net.plan.batch_layout(), Dims{rows, 3}))));
              })
        .loss;
  }

  Planned net;
  Training training;
};

nn::ParameterPointer wide(const Dims& shape, const Layout& layout) {
  auto made = std::make_shared<nn::Parameter>(shape, DType::f32, nn::Initialization{});
  made->name = "wide";
  const Tensor value = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < value.numel(); ++i) {
    value.data<float>()[i] = static_cast<float>(std::sin(1 + static_cast<double>(i)));
  }
  made->value = distribute(value, layout);
  made->value.set_requires_grad();
  return made;
}

std::vector<double> whole(const Tensor& x) { return to_doubles(full_tensor(x)); }

}  // namespace

TEST_CASE("a run with any optimizer, and another one for a group, continues bit by bit") {
  for (const char* file : {TESSERA_ADAFACTOR, TESSERA_MUON}) {
    plugin::host().load(file);
  }
  std::vector<std::string> rules = optim::built_in_rules();
  rules.insert(rules.end(), {"adafactor", "muon"});
  for (const std::string& rule : rules) {
    INFO(rule);
    const Folder folder;
    std::vector<double> losses;
    const auto train = [&](const char* name, bool resumes) {
      REQUIRE_NOTHROW(on_layout(layout_named(name), [&](const DeviceMesh& mesh) {
        set_seed(3);
        Run run(mesh, layout_named(name), rule);
        std::vector<double> own;
        if (resumes) {
          run.training.checkpoints().load(folder / "run");
        } else {
          for (int i = 0; i < 3; ++i) {
            run.step();
          }
          run.training.checkpoints().save(folder / "run");
        }
        for (int i = 0; i < 3; ++i) {
          own.push_back(run.step());
        }
        if (!resumes && current_rank() == 0) {
          losses = own;
        }
        if (resumes) {
          for (std::size_t i = 0; i < own.size(); ++i) {
            const bool exact = std::string(name) == "fully sharded";
            check(exact ? own[i] == losses[i] : std::abs(own[i] - losses[i]) < 1e-4 * losses[i],
                  "loss " + std::to_string(own[i]) + " instead of " + std::to_string(losses[i]));
          }
        }
      }));
    };
    train("fully sharded", false);
    train("fully sharded", true);
    train("one rank", true);
    train("hybrid", true);
  }
}

TEST_CASE("adafactor updates parameters of several layouts") {
  plugin::host().load(TESSERA_ADAFACTOR);
  const Layouts split{"",
                      {"shard", "tensor"},
                      {2, 2},
                      {{"ColwiseParallel", "tensor", {"blocks.*.up"}, "{}", ""},
                       {"RowwiseParallel", "tensor", {"blocks.*.down"}, "{}", ""},
                       fsdp({"blocks.*", "."})}};
  const auto losses_on = [](const Layouts& layout) {
    std::vector<double> losses;
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      set_seed(3);
      Run run(mesh, layout, "adafactor");
      for (int i = 0; i < 6; ++i) {
        const double loss = run.step();
        if (current_rank() == 0) {
          losses.push_back(loss);
        }
      }
    }));
    return losses;
  };
  CHECK(difference(losses_on(split), losses_on(layout_named("one rank"))) < 1e-6);
}

TEST_CASE("8-bit state is stored as it is, and loaded in layouts that do not cut blocks") {
  const Folder folder;
  const Dims shape{64, 512};
  std::vector<double> codes;
  std::vector<double> scales;
  const auto optimizer_of = [](const nn::ParameterPointer& p) {
    return std::make_unique<optim::Optimizer>(std::vector{p},
                                              optim::load_rule("adamw", R"({"state_bits": 8})"));
  };
  const auto on = [](int ranks, const std::function<void(const DeviceMesh&)>& body) {
    REQUIRE_NOTHROW(on_layout({"", {"shard"}, {ranks}, {}}, body));
  };
  on(2, [&](const DeviceMesh& mesh) {
    const auto p = wide(shape, Layout::make(mesh, {Shard(0)}));
    const auto optimizer = optimizer_of(p);
    for (int step = 0; step < 3; ++step) {
      p->value.grad() = ops::mul_scalar(detached(p->value), 0.5 + step);
      optimizer->step(0.01);
    }
    const StateDict state = optimizer->state();
    save_checkpoint(folder / "run", state);
    const std::vector<double> all = whole(state.tensors.at("exp_avg.wide"));
    const std::vector<double> each = whole(state.tensors.at("exp_avg_scale.wide"));
    if (current_rank() == 0) {
      codes = all;
      scales = each;
    }
  });
  for (const auto& [ranks, placement] : std::vector<std::pair<int, Placement>>{
           {2, Shard(0)}, {1, Replicate()}, {4, Shard(0)}, {2, Shard(1)}}) {
    on(ranks, [&](const DeviceMesh& mesh) {
      const auto p = wide(shape, Layout::make(mesh, {placement}));
      const auto optimizer = optimizer_of(p);
      optimizer->prepare_state();
      StateDict state = optimizer->state();
      load_state(CheckpointReader(folder / "run"), state, {});
      check(whole(state.tensors.at("exp_avg.wide")) == codes, "the codes");
      check(whole(state.tensors.at("exp_avg_scale.wide")) == scales, "the scales");
    });
  }
  on(4, [&](const DeviceMesh& mesh) {  // 128 columns a rank: no codes there
    const auto p = wide(shape, Layout::make(mesh, {Shard(1)}));
    const auto optimizer = optimizer_of(p);
    optimizer->prepare_state();
    StateDict state = optimizer->state();
    const std::string error =
        error_of([&] { load_state(CheckpointReader(folder / "run"), state, {}); });
    check(error.find("exp_avg") != std::string::npos, error);
  });
}
