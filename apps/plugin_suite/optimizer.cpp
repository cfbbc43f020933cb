module;
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.optim;

// An optimizer against what every optimizer promises: the result depends on parameters, gradients
// and the declared state only, in every layout.
namespace tessera::plugin_suite {
namespace {

constexpr int ranks = 2;
constexpr double tolerance = 1e-5;

Tensor pattern(const Dims& shape, double phase) {
  const Tensor x = empty(shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i) + phase));
  }
  return x;
}

/// Parameters that the rule takes, with their state, plain or as shards on `mesh`.
class Subject {
 public:
  Subject(const std::string& name, const DeviceMesh* mesh) : mesh_(mesh) {
    make_rule(name);
    for (const Dims& shape : {Dims{5, 3}, Dims{7}}) {
      if (rule_->takes(shape)) {
        parameters.push_back(placed(pattern(shape, 0.3)));
      }
    }
    if (parameters.empty()) {
      fail("it takes neither matrices nor vectors");
    }
    for (const optim::StateTensor& state : rule_->states()) {
      std::vector<Tensor> tensors;
      for (const Tensor& p : parameters) {
        tensors.push_back(optim::make_state(state, p));
      }
      states.push_back(std::move(tensors));
    }
  }

  /// A fresh rule: only the declared state is carried over to it.
  void make_rule(const std::string& name) {
    PluginOptions options;
    rule_ = plugin::host().find<optim::UpdateRule>(name)(options);
  }

  void step(std::int64_t number, double lr = 0.01, double scale = 1, double factor = 1) {
    const NoGrad no_grad;
    optim::UpdateGroup group{.step = number,
                             .lr = lr,
                             .weight_decay = 0.1,
                             .grad_scale = scale,
                             .parameters = parameters,
                             .states = states};
    for (const Tensor& p : parameters) {
      group.gradients.push_back(
          placed(ops::mul_scalar(pattern(p.shape(), 0.9 * static_cast<double>(number)), factor)));
    }
    rule_->update(group);
  }

  std::vector<double> values() const {
    std::vector<double> all;
    for (const Tensor& p : parameters) {
      const std::vector<double> one = to_doubles(p.is_distributed() ? full_tensor(p) : p);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::vector<Tensor> parameters;
  std::vector<std::vector<Tensor>> states;

 private:
  Tensor placed(const Tensor& x) const {
    return mesh_ == nullptr ? x : distribute(x, Layout::make(*mesh_, {Shard(0)}));
  }

  const DeviceMesh* mesh_;
  std::unique_ptr<optim::UpdateRule> rule_;
};

std::vector<double> after_steps(const std::string& name, const DeviceMesh* mesh) {
  Subject subject(name, mesh);
  for (int step = 1; step <= 4; ++step) {
    subject.step(step);
  }
  return subject.values();
}

std::string moves_parameters(const std::string& name) {
  const std::vector<double> first = Subject(name, nullptr).values();
  const std::vector<double> last = after_steps(name, nullptr);
  const double moved = largest_difference(last, first);
  if (!std::isfinite(moved)) {
    return "after 4 steps parameters are not finite";
  }
  return moved > 0 ? "" : "4 steps with gradients and lr 0.01 changed no parameter";
}

std::string same_in_every_layout(const std::string& name) {
  const std::vector<double> expected = after_steps(name, nullptr);
  std::vector<double> got;
  collective::run_threads(ranks, [&](collective::World& world) {
    const DeviceMesh mesh = DeviceMesh::make({"ranks"}, {ranks});
    const std::vector<double> mine = after_steps(name, &mesh);
    if (world.rank() == 0) {
      got = mine;
    }
  });
  const double difference = largest_difference(got, expected);
  return difference <= tolerance
             ? ""
             : fmt::format("shards on two ranks differ from whole parameters (by {:.1e})",
                           difference);
}

std::string scales_gradients(const std::string& name) {
  Subject scaled(name, nullptr);
  Subject small(name, nullptr);
  for (int step = 1; step <= 2; ++step) {
    scaled.step(step, 0.01, 0.25, 1);
    small.step(step, 0.01, 1, 0.25);
  }
  const double difference = largest_difference(scaled.values(), small.values());
  return difference <= tolerance
             ? ""
             : fmt::format("grad_scale = 0.25 is not a gradient times 0.25 (differs by {:.1e})",
                           difference);
}

std::string stays_without_a_rate(const std::string& name) {
  Subject subject(name, nullptr);
  const std::vector<double> before = subject.values();
  subject.step(1, 0);
  return subject.values() == before ? "" : "a step with lr = 0 changes parameters";
}

std::string keeps_nothing_back(const std::string& name) {
  Subject subject(name, nullptr);
  for (int step = 1; step <= 4; ++step) {
    if (step == 3) {
      subject.make_rule(name);  // a resumed run: parameters, state and step are all there is
    }
    subject.step(step);
  }
  return subject.values() == after_steps(name, nullptr)
             ? ""
             : "a resumed run differs: it keeps something that states() does not declare";
}

}  // namespace

std::vector<SuiteCheck> optimizer_suite(const std::string& name) {
  return {
      {"steps move parameters", [=] { return moves_parameters(name); }},
      {"shards are updated as whole parameters are", [=] { return same_in_every_layout(name); }},
      {"gradients are multiplied by grad_scale", [=] { return scales_gradients(name); }},
      {"lr = 0 changes no parameter", [=] { return stays_without_a_rate(name); }},
      {"a resumed run has the same bits", [=] { return keeps_nothing_back(name); }}};
}

}  // namespace tessera::plugin_suite
