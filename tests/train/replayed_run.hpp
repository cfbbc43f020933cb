// A Net that is trained by steps that can be replayed. Include it after the imports, layouts.hpp
// and net.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace train_test {

using namespace tessera;
using namespace parallel_test;

inline constexpr std::int64_t rows = 8;
inline const optim::Schedule schedule = {
    .kind = optim::ScheduleKind::cosine, .lr = 0.05, .warmup = 3, .end = 20};

struct Options {
  NetOptions net = {};
  std::int64_t micro_rows = 0;
  DType dtype = DType::f64;
  bool groups = false;  // parameters with learning rates of their own
  std::string rule = "adamw";
  std::string rule_options = "{}";
  double max_norm = 0.7;
  double first_weight = 24;  // of step s: first_weight + s * more_weight
  double more_weight = 0;
  bool wrong_tokens = false;  // which no embedding has
};

inline std::unique_ptr<optim::Optimizer> optimizer_of(nn::Module& model, const Options& options) {
  optim::OptimizerOptions own{.weight_decay = 0.1};
  if (options.groups) {
    own.groups = {{.on = {"head.*", "blocks.0.up.*"}, .lr_scale = 0.3},
                  {.on = {"blocks.1.**"}, .weight_decay = 0.02}};
  }
  return std::make_unique<optim::Optimizer>(
      nn::all_parameters(model), optim::load_rule(options.rule, options.rule_options), own);
}

/// A Net whose parameters are of another type.
inline std::shared_ptr<Net> net_of(const Options& options) {
  auto net = std::make_shared<Net>(options.net);
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*net)) {
    const Tensor& value = parameter->value;
    const bool trained = value.requires_grad();
    parameter->value = empty(value.shape(), options.dtype, value.device());
    parameter->value.set_requires_grad(trained);
  }
  return net;
}

struct Run {
  Run(const DeviceMesh& mesh, const std::vector<parallel::StyleEntry>& styles,
      const Options& all = {})
      : options(all),
        net(net_of(options), mesh, styles),
        training(*net.model, net.plan, optimizer_of(*net.model, options), schedule,
                 options.max_norm) {}

  double evaluate() {
    return training.evaluate(1, {.rows = rows}, [&](const BatchPart&) {
      const Tensor tokens = distribute(net_tokens(rows, 50), net.plan.batch_layout());
      return ops::sum((*net.model)(tokens));
    });
  }

  /// `of`: the rows of the whole step.
  StepResult step(std::int64_t of = rows, bool last = false) {
    return training.step(
        {.rows = of,
         .micro_rows = options.micro_rows,
         .weight =
             options.first_weight + options.more_weight * static_cast<double>(training.done()),
         .last_train_step = last},
        StepFunctions{
            .rows =
                [&](const BatchPart& m) {
                  Tensor all = net_tokens(of, static_cast<int>(m.step));
                  if (options.wrong_tokens) {
                    all = full(all.shape(), 1e6, all.dtype());
                  }
                  return Tensors{ops::contiguous(ops::narrow(all, 0, m.first, m.rows))};
                },
            .loss_sum =
                [&](const Tensors& tensors) {
                  const Dims shape{
                      options.micro_rows == 0 ? of : options.micro_rows * net.plan.batch_parts(),
                      3};
                  const Tensor tokens = from_local(tensors[0], net.plan.batch_layout(), shape);
                  return ops::sum(ops::square((*net.model)(tokens)));
                }});
  }

  Options options;
  Planned net;
  Training training;
};

/// Those of layouts.hpp, and one that keeps what it has gathered.
inline std::vector<Layouts> replayed_layouts() {
  std::vector<Layouts> all = train_test::layouts();
  all.push_back({"kept gathered", {"shard"}, {2}, {fsdp({"blocks.*", "."}, false)}});
  return all;
}

}  // namespace train_test
