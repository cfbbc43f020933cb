// Changes that replace a Llama's norms: a right one, and ones that a run must refuse.
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.passes;
import tessera.graph;

namespace {

using namespace tessera;

void like_first(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

const Op& norm_block = graph::register_anchor(
    {.schema = "wrong_norm(x, weight)", .infer = like_first, .about = "Marks a norm."});

enum class Does { norm, more, anchor };

class Norm final : public nn::Module {
 public:
  Norm(const std::shared_ptr<nn::Module>& before, Does does) : does_(does) {
    for (const auto& [name, parameter] : before->parameters()) {
      add_parameter(name, parameter);
      if (does == Does::more) {
        add_parameter("bias", std::make_shared<nn::Parameter>(
                                  parameter->value.shape(), parameter->value.dtype(),
                                  nn::Initialization{nn::Initialization::Kind::zeros}));
      }
    }
  }
  std::string_view kind() const override { return "Norm"; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor& x = input(inputs, 0);
    const Tensor weight = parameter("weight")->use();
    if (does_ == Does::anchor) {
      const Tensors in = {x, weight};
      LocalMapOptions options;
      options.in = options.in_gradients = {x.layout(), weight.layout()};
      options.out = {x.layout()};
      options.out_shapes = {x.shape()};
      return local_map(
          [](std::span<const Tensor> all) { return tessera::call(norm_block, all, {}); }, in,
          options);
    }
    const Tensor y = ops::mul(x, weight);
    return {does_ == Does::more ? ops::add(y, parameter("bias")->use()) : y};
  }

 private:
  Does does_;
};

template <Does does>
std::shared_ptr<nn::Module> replaced(const std::string& /*name*/,
                                     const std::shared_ptr<nn::Module>& module) {
  return module->kind() == "RMSNorm" ? std::make_shared<Norm>(module, does) : nullptr;
}

std::shared_ptr<nn::Module> nothing(const std::string& /*name*/,
                                    const std::shared_ptr<nn::Module>& /*module*/) {
  return nullptr;
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  const auto add = [&](const char* name, const graph::Change& change) {
    registrar.add<graph::Change>(name, [=] { return change; });
  };
  const graph::ChangeFacts evaluates = {.evaluates_as_written = true};
  add("right", {.name = "right", .facts = evaluates, .replacement = replaced<Does::norm>});
  add("adds_parameters",
      {.name = "adds_parameters", .facts = evaluates, .replacement = replaced<Does::more>});
  add("replaces_nothing", {.name = "replaces_nothing", .facts = evaluates, .replacement = nothing});
  add("leaves_anchors",
      {.name = "leaves_anchors", .facts = evaluates, .replacement = replaced<Does::anchor>});
  add("unclear", {.name = "unclear", .replacement = replaced<Does::norm>});
  add("misnamed_override", {.name = "another", .replacement = replaced<Does::norm>});
  add("does_nothing", {.name = "does_nothing"});
  // It computes something else, which a verified step shows.
  add("says_same",
      {.name = "says_same", .facts = {.keeps_bits = true}, .replacement = replaced<Does::norm>});
}
