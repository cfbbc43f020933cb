#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

namespace parallel_test {

using namespace tessera;

namespace {

constexpr double standard_deviation = 0.5;

Tensor whole(const Tensor& x) { return x.is_distributed() ? full_tensor(detached(x)) : x; }

}  // namespace

NetBlock::NetBlock(double dropout) {
  norm_ = add_child<nn::RMSNorm>("norm", 6, 1e-5, DType::f64);
  drop_ = add_child<nn::Dropout>("drop", dropout);
  up_ = add_child<nn::Linear>("up", 6, 7, true, standard_deviation, DType::f64);
  down_ = add_child<nn::Linear>("down", 7, 6, false, standard_deviation, DType::f64);
}

Tensors NetBlock::forward(const Tensors& inputs) {
  const Tensor inner = (*down_)(ops::relu((*up_)((*drop_)((*norm_)(inputs[0])))));
  return {ops::add(inputs[0], inner)};
}

Net::Net(const NetOptions& options) : checkpointing_(options.checkpointing) {
  embed_ = add_child<nn::Embedding>("embed", vocabulary, 6, standard_deviation, DType::f64);
  for (const char* name : {"blocks.0", "blocks.1"}) {
    blocks_.push_back(add_child<NetBlock>(name, options.dropout));
  }
  head_ = add_child<nn::Linear>("head", 6, vocabulary, false, standard_deviation, DType::f64);
  if (options.tied) {
    head_->set_parameter("weight", embed_->parameter("weight"));
  }
  set_names();
  for (const auto& [name, parameter] : nn::named_parameters(*this)) {
    for (const std::string& prefix : options.frozen) {
      if (name.starts_with(prefix)) {
        parameter->value.set_requires_grad(false);
      }
    }
  }
}

Tensors Net::forward(const Tensors& inputs) {
  Tensor x = (*embed_)(inputs[0]);
  for (const auto& block : blocks_) {
    if (checkpointing_ && grad_enabled()) {
      const Tensors in{x};
      x = checkpoint([block](std::span<const Tensor> again) { return (*block)(Tensors{again[0]}); },
                     in)[0];
    } else {
      x = (*block)(x);
    }
  }
  return {(*head_)(x)};
}

Tensor net_tokens(std::int64_t rows, int seed) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < 3 * rows; ++i) {
    tokens.push_back((i * 7 + 5 * seed + i * i) % Net::vocabulary);
  }
  return from_values(std::span<const std::int64_t>(tokens), {rows, 3});
}

Named values_of(nn::Module& model) {
  const NoGrad no_grad;
  Named all;
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    all[p->name] = to_doubles(whole(p->value));
  }
  return all;
}

Named gradients_of(nn::Module& model) {
  const NoGrad no_grad;
  Named all;
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    if (p->value.grad()) {
      all[p->name] = to_doubles(whole(p->value.grad()));
    }
  }
  return all;
}

void write_values(nn::Module& model, const Named& values) {
  const NoGrad no_grad;
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    const std::vector<double>& source = values.at(p->name);
    Tensor x = from_values(std::span<const double>(source), p->value.shape());
    if (p->value.is_distributed()) {
      x = distribute(x, p->value.layout());
    }
    ops::copy_(p->value, x);
  }
}

void clear_gradients(nn::Module& model) {
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    p->value.grad() = Tensor();
  }
}

void change_values(nn::Module& model, double factor, double offset) {
  const NoGrad no_grad;
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    ops::copy_(p->value, ops::add_scalar(ops::mul_scalar(p->value, factor), offset));
  }
}

double difference(const Named& a, const Named& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    largest = std::max(largest, other == b.end() ? std::numeric_limits<double>::infinity()
                                                 : difference(values, other->second));
  }
  return largest;
}

Planned::Planned(std::shared_ptr<nn::Module> net, const DeviceMesh& mesh,
                 const std::vector<parallel::StyleEntry>& entries, Device device)
    : model(std::move(net)), plan(*model, mesh, entries, shipped_styles()) {
  set_seed(5);  // as plain() does
  if (!(device == meta)) {
    plan.materialize(device);
    nn::initialize(*model);
  }
}

Tensor Planned::loss(const Tensor& tokens) {
  return ops::sum(ops::square((*model)(distribute(tokens, plan.batch_layout()))));
}

std::string refusal(const std::vector<parallel::StyleEntry>& entries,
                    const std::shared_ptr<nn::Module>& model, int ranks) {
  const std::shared_ptr<nn::Module> checked = model ? model : std::make_shared<Net>();
  return error_of([&] {
    const parallel::ParallelPlan plan(*checked, DeviceMesh::make({"shard"}, {ranks}), entries,
                                      shipped_styles());
  });
}

std::shared_ptr<nn::Module> plain(std::shared_ptr<nn::Module> net) {
  set_seed(5);
  nn::materialize(*net);
  nn::initialize(*net);
  return net;
}

Tensor plain_loss(nn::Module& model, const Tensor& tokens) {
  return ops::sum(ops::square(model(tokens)));
}

parallel::StyleEntry fsdp(std::vector<std::string> on, bool reshard, const std::string& axis) {
  return {"FSDP", axis, std::move(on),
          reshard ? R"~({"accumulate": "whole"})~"
                  : R"~({"accumulate": "whole", "reshard_after_forward": false})~",
          ""};
}

Sharded::Sharded(const DeviceMesh& mesh, const parallel::FullyShardOptions& options,
                 const NetOptions& net)
    : model(net), handle(model, mesh, options, shipped_styles()) {
  set_seed(5);  // as plain() does
  handle.materialize();
  nn::initialize(model);
}

Tensor Sharded::loss(int seed) {
  return plain_loss(model, distribute(net_tokens(4, seed), handle.batch_layout()));
}

parallel::FullyShardOptions in_blocks() { return {.groups = {"blocks.*", "."}}; }

nn::Module& block_of(nn::Module& net, std::size_t i) { return *net.children()[1 + i].second; }

bool is_whole(nn::Module& net, std::size_t i) {
  return block_of(net, i).children()[2].second->parameter("weight")->computed.defined();
}

const Tensor& computed_head(nn::Module& net) {
  return net.children().back().second->parameter("weight")->computed;
}

namespace {

class Extending final : public parallel::ParallelStyle {
 public:
  explicit Extending(std::function<std::shared_ptr<parallel::ShardExtension>()> make)
      : make_(std::move(make)) {}
  parallel::StyleFacts facts() const override { return {.extends_gathers = true, .most_axes = 0}; }
  void apply(const parallel::StyleTarget& target) override {
    for (const auto& [name, parameter] : target.module.parameters()) {
      parallel::set_extension(*parameter, make_(), target.entry);
    }
  }

 private:
  std::function<std::shared_ptr<parallel::ShardExtension>()> make_;
};

class TwoParts final : public parallel::ShardExtension {
 public:
  std::vector<parallel::Payload> payloads(
      const parallel::GatheredParameter& gathered) const override {
    return {{gathered.shape, DType::bf16}, {gathered.shape, gathered.parameter.value.dtype()}};
  }
  void pack(const parallel::GatheredParameter&, const Tensor& shard,
            std::span<const Tensor> parts) override {
    ops::copy_(parts[0], ops::cast(shard, DType::bf16));
    ops::copy_(parts[1], ops::sub(shard, ops::cast(parts[0], shard.dtype())));
  }
  void unpack(const parallel::GatheredParameter&, std::span<const Tensor> payloads,
              const Tensor& values) override {
    ops::copy_(values, ops::add(payloads[1], ops::cast(payloads[0], payloads[1].dtype())));
  }
};

}  // namespace

parallel::StyleEntry extend(
    std::vector<std::string> on,
    const std::function<std::shared_ptr<parallel::ShardExtension>()>& make) {
  return {.style = "Extending", .on = std::move(on), .make = [make](parallel::Options&) {
            return std::make_unique<Extending>(make);
          }};
}

std::shared_ptr<parallel::ShardExtension> in_two_parts() { return std::make_shared<TwoParts>(); }

}  // namespace parallel_test
