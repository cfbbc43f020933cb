#include "difference.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "on_ranks.hpp"

import tessera.base;
import tessera.autograd;
import tessera.checkpoint;
import tessera.collective;
import tessera.dtensor;
import tessera.exported;
import tessera.graph;
import tessera.mesh;
import tessera.nn;
import tessera.ops;
import tessera.optim;
import tessera.parallel;
import tessera.placement;
import tessera.plugin;
import tessera.tensor;
import tessera.train;

using namespace tessera;

namespace exported_test {
namespace {

constexpr int steps = 20;
constexpr double momentum = 0.9;

double largest_of(const Tensor& x) {
  double most = 0;
  for (const double value : to_doubles(x)) {
    most = std::max(most, std::abs(value));
  }
  return most;
}

/// The largest difference; infinity where the shapes differ or a value is not finite.
double difference(const Tensor& got, const Tensor& wanted) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (!got || !(got.shape() == wanted.shape())) {
    return infinity;
  }
  const std::vector<double> a = to_doubles(got);
  const std::vector<double> b = to_doubles(wanted);
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::isfinite(a[i]) ? std::max(most, std::abs(a[i] - b[i])) : infinity;
  }
  return most;
}

Tensor whole(const Tensor& x) { return x && x.is_distributed() ? full_tensor(detached(x)) : x; }

/// What PyTorch has computed.
class Expected {
 public:
  explicit Expected(const std::string& path) : file_(path) {}

  Tensors list(const std::string& prefix) const {
    Tensors all;
    for (int i = 0; file_.contains(prefix + std::to_string(i)); ++i) {
      all.push_back(file_.read(prefix + std::to_string(i)));
    }
    return all;
  }
  Tensor find(const std::string& name) const {
    return file_.contains(name) ? file_.read(name) : Tensor();
  }

 private:
  SafetensorsFile file_;
};

/// The mean over the outputs of mean((output - target)^2).
Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  Tensor loss;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Tensor error = ops::square(ops::sub(outputs[i], targets[i]));
    const Tensor one = ops::mul_scalar(
        ops::sum(error),
        1.0 / static_cast<double>(error.numel() * static_cast<std::int64_t>(targets.size())));
    loss = loss ? ops::add(loss, one) : one;
  }
  return loss;
}

/// SGD with momentum, as PyTorch's.
class Descent {
 public:
  Descent(nn::Module& model, double rate) : parameters_(nn::all_parameters(model)), rate_(rate) {}

  void step() {
    const NoGrad no_grad;
    for (const nn::ParameterPointer& p : parameters_) {
      if (!p->value.grad()) {
        continue;
      }
      Tensor& buffer = buffers_[p->name];
      buffer = buffer ? ops::add(ops::mul_scalar(buffer, momentum), p->value.grad())
                      : ops::clone(p->value.grad());
      ops::add_(p->value, buffer, -rate_);
      p->value.grad() = {};
    }
  }

 private:
  std::vector<nn::ParameterPointer> parameters_;
  double rate_;
  std::map<std::string, Tensor> buffers_;
};

/// Relative to the largest gradient of all: those of a key's bias are 0 but for rounding.
void compare_gradients(nn::Module& model, const Expected& expected, Differences& found) {
  double largest = 0;
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    if (const Tensor gradient = expected.find("grad." + p->name)) {
      const Tensor own = whole(p->value.grad());
      largest = std::max(largest, largest_of(gradient));
      found.gradients = std::max(found.gradients, difference(own, gradient));
      if (const Tensor exact = expected.find("exact." + p->name)) {
        found.exact = std::max(found.exact, difference(own, exact));
        found.exact_expected = std::max(found.exact_expected, difference(gradient, exact));
      }
    }
  }
  found.gradients /= largest;
  found.exact /= largest;
  found.exact_expected /= largest;
}

double step_difference(const Tensor& got, const Tensor& wanted) {
  return difference(whole(got), wanted) / std::max(1.0, largest_of(wanted));
}

/// Parameters and buffers after the steps.
void compare_state(nn::Module& model, const Expected& expected, Differences& found) {
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    found.steps =
        std::max(found.steps, step_difference(p->value, expected.find("after." + p->name)));
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    if (const Tensor after = expected.find("after." + buffer->name)) {
      found.steps = std::max(found.steps, step_difference(buffer->value, after));
    }
  }
}

void note_loss(double loss, const Expected& expected, int step, Differences& found) {
  const double wanted = to_doubles(expected.find("losses"))[static_cast<std::size_t>(step)];
  const double difference = std::abs(loss - wanted);
  found.losses = std::max(
      found.losses, std::isfinite(loss) ? difference : std::numeric_limits<double>::infinity());
}

/// Trains a model whose rows are distributed by `rows`, and compares.
template <class Rows, class Step>
Differences trained(exported::ExportedModel& model, const Expected& expected, Rows rows,
                    Step before_step) {
  const Tensors inputs = rows(expected.list("in."));
  const Tensors targets = rows(expected.list("target."));
  const Tensors wanted = expected.list("out.");
  Differences found;
  Descent descent(model, to_doubles(expected.find("rate"))[0]);
  for (int step = 0; step < steps; ++step) {
    const Tensors outputs = model(inputs);  // in its only forward: one changes running statistics
    const Tensor loss = loss_of(outputs, targets);
    backward(loss);
    before_step();
    note_loss(whole(loss).item(), expected, step, found);
    if (step == 0) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        found.outputs = std::max(found.outputs, difference(whole(outputs[i]), wanted[i]) /
                                                    std::max(1.0, largest_of(wanted[i])));
      }
      compare_gradients(model, expected, found);
    }
    descent.step();
  }
  compare_state(model, expected, found);
  return found;
}

Differences on_one_rank(const std::string& program, const Expected& expected, bool recompute) {
  const auto model = exported::load_exported(program);
  model->set_activation_checkpointing(recompute);
  return trained(*model, expected, [](Tensors rows) { return rows; }, [] {});
}

plugin::Host& shipped_styles() {
  static plugin::Host host(
      {.paths = {TESSERA_SHIPPED_PLUGINS}, .environment = false, .standard_places = false});
  return host;
}

/// FSDP over two ranks: a group for each block, and one for the rest.
Differences on_two_ranks(const std::string& program, const Expected& expected) {
  Differences most;
  std::mutex mutex;
  testing::on_ranks(2, [&](int) {
    const auto file = checkpoint_format("pt2").open(program);
    exported::ExportedModel model(exported::read_exported_graph(*file), *file);
    std::vector<std::string> groups = model.blocks();
    groups.emplace_back(".");
    parallel::FullySharded sharded(model, DeviceMesh::make({"shard"}, {2}),
                                   {.groups = std::move(groups)}, shipped_styles());
    sharded.materialize();
    model.load(*file);
    const auto rows = [&](const Tensors& all) {
      Tensors mine;
      for (const Tensor& x : all) {
        mine.push_back(distribute(x, sharded.batch_layout()));
      }
      return mine;
    };
    const Differences found = trained(model, expected, rows, [&] { sharded.before_optimizer(); });
    const std::lock_guard lock(mutex);
    most.outputs = std::max(most.outputs, found.outputs);
    most.gradients = std::max(most.gradients, found.gradients);
    most.steps = std::max(most.steps, found.steps);
    most.losses = std::max(most.losses, found.losses);
  });
  return most;
}

/// A step of one rank, which a mode places over the ranks.
struct PlacedStep {
  PlacedStep(const std::string& program, Device device, std::size_t input_count)
      : inputs(input_count) {
    const auto file = checkpoint_format("pt2").open(program);
    model = std::make_shared<exported::ExportedModel>(exported::read_exported_graph(*file), *file);
    if (!(device == meta)) {
      nn::materialize(*model, device);
      model->load(*file);
    }
    optimizer = optim::sgd(nn::all_parameters(*model), {.momentum = momentum});
  }
  Tensors operator()(StepCall& call) {
    Tensors rows;
    Tensors targets;
    for (std::size_t i = 0; i < call.inputs().size(); ++i) {
      (i < inputs ? rows : targets).push_back(call.inputs()[i]);
    }
    const Tensor loss = loss_of((*model)(rows), targets);
    backward(loss);
    call.update(*optimizer, call.number("lr"));
    return {loss};
  }

  std::size_t inputs;
  std::shared_ptr<exported::ExportedModel> model;
  std::unique_ptr<optim::Optimizer> optimizer;
};

/// Placed by the mode fully_shard on two ranks.
Differences placed_on_two_ranks(const std::string& program, const Expected& expected) {
  Differences most;
  std::mutex mutex;
  testing::on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    const Layout batch = Layout::replicated(mesh).with_placement(0, Shard(0));
    Tensors rows = expected.list("in.");
    const std::size_t count = rows.size();
    for (const Tensor& target : expected.list("target.")) {
      rows.push_back(target);
    }
    for (Tensor& x : rows) {
      x = ops::contiguous(distribute(x, batch).local());
    }
    std::shared_ptr<PlacedStep> taken;  // the one that trains, not the one on the meta device
    CompiledStep step = compile(
        [&](Device device) -> StepBody {
          const auto made = std::make_shared<PlacedStep>(program, device, count);
          taken = device == meta ? taken : made;
          return [made](StepCall& call) { return (*made)(call); };
        },
        {.mode = graph::DataParallelMode::fully_shard, .mesh = mesh});
    const double rate = to_doubles(expected.find("rate"))[0];
    Differences found;
    for (int i = 0; i < steps; ++i) {
      note_loss(whole(step(rows, {.numbers = {{"lr", rate}}})[0]).item(), expected, i, found);
    }
    compare_state(*taken->model, expected, found);
    const std::lock_guard lock(mutex);
    most.steps = std::max(most.steps, found.steps);
    most.losses = std::max(most.losses, found.losses);
  });
  return most;
}

}  // namespace

bool Differences::below(double limit) const {
  const bool rounding = exact > 0 && exact <= std::max(limit, 2 * exact_expected);
  return std::max({outputs, steps, losses}) < limit && (gradients < limit || rounding);
}

double Differences::largest() const { return std::max({outputs, gradients, steps, losses}); }

std::string stored() { return TESSERA_REFERENCE_DATA "/exported"; }

Differences differences(const std::string& folder, const std::string& name, Way way) {
  const std::string program = folder + "/" + name + ".pt2";
  const Expected expected(folder + "/" + name + ".safetensors");
  switch (way) {
    case Way::sharded:
      return on_two_ranks(program, expected);
    case Way::placed:
      return placed_on_two_ranks(program, expected);
    case Way::plain:
    case Way::recompute:
      break;
  }
  return on_one_rank(program, expected, way == Way::recompute);
}

}  // namespace exported_test
