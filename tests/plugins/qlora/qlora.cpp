// The style QLoRA: packed weights against torchao's codes, gradients, what is frozen, what is
// refused. Curves against PEFT's are in tests/equivalence/lora.cpp.
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
import tessera.checkpoint;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

/// Two linear layers, of f32, that can be replaced.
class Pair final : public nn::Module {
 public:
  Pair(std::int64_t in, std::int64_t out) {
    first_ = add_child<nn::Linear>("first", in, out, true, 0.3);
    second_ = add_child<nn::Linear>("second", out, 3, false, 0.3);
    set_names();
  }
  std::string_view kind() const override { return "Pair"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*second_)(ops::relu((*first_)(inputs[0])))};
  }

 private:
  nn::Child first_, second_;
};

/// Two layers with one weight.
class Tied final : public nn::Module {
 public:
  Tied() {
    first_ = add_child<nn::Linear>("first", 64, 64, false, 0.3);
    second_ = add_child<nn::Linear>("second", 64, 64, false, 0.3);
    second_->set_parameter("weight", first_->parameter("weight"));
    set_names();
  }
  std::string_view kind() const override { return "Tied"; }
  Tensors forward(const Tensors& inputs) override { return {(*second_)((*first_)(inputs[0]))}; }

 private:
  nn::Child first_, second_;
};

parallel::StyleEntry qlora(const std::string& options, std::vector<std::string> on = {"first"}) {
  return {.style = "QLoRA", .on = std::move(on), .options = options};
}

parallel::StyleEntry replicate() { return {"Replicate", "shard", {"."}, "{}", ""}; }

Tensor rows(std::int64_t in) {
  Tensor x = empty({8, in});
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = std::sin(0.37F * static_cast<float>(i));
  }
  return x;
}

nn::Module& layer_of(nn::Module& model, std::size_t i) { return *model.children()[i].second; }

Tensor value_of(nn::Module& layer, const std::string& name) {
  const Tensor& value = layer.parameter(name)->value;
  return value.is_distributed() ? full_tensor(detached(value)) : value;
}

std::string refused(const std::vector<parallel::StyleEntry>& entries, std::int64_t in = 64) {
  return refusal(entries, std::make_shared<Pair>(in, 64));
}

}  // namespace

TEST_CASE("codes and scales of a packed weight are torchao's, in every layout") {
  const SafetensorsFile file(TESSERA_SOURCE_FOLDER "/tests/reference/data/nf4.safetensors");
  const std::vector<std::vector<parallel::StyleEntry>> layouts = {
      {replicate()}, {fsdp({"first", "."})}, {{"ColwiseParallel", "shard", {"first"}}}};
  for (std::size_t number = 0; number < layouts.size(); ++number) {
    on_ranks(number == 1 ? 3 : 2, [&](int) {
      const auto model = std::make_shared<Pair>(256, 192);
      std::vector<parallel::StyleEntry> entries = layouts[number];
      entries.insert(entries.begin(), qlora("{}"));
      Planned run(model, DeviceMesh::make({"shard"}, {number == 1 ? 3 : 2}), entries);
      const NoGrad no_grad;
      nn::Module& layer = layer_of(*model, 0);
      const std::span<const nn::PackedWeight> packed = nn::packed_weights_of(layer);
      check(packed.size() == 1 && packed[0].name == "weight", "one weight is packed");
      const Tensor whole = file.read("weight");
      packed[0].pack(distribute(whole, packed[0].layout()));
      for (const char* exact : {"codes", "scales"}) {
        check(to_doubles(value_of(layer, exact)) == to_doubles(file.read(exact)), exact);
      }
      for (const char* close : {"factors", "mean"}) {
        check(difference(to_doubles(value_of(layer, close)), to_doubles(file.read(close))) < 1e-6,
              close);
      }
      // The output is that of the stored values.
      ops::fill_(layer.parameter("bias")->value, 0);
      const Tensor x = distribute(rows(256), run.plan.batch_layout());
      const Tensor y = full_tensor(layer(x));
      const Tensor expected = ops::linear(rows(256), file.read("values"));
      check(difference(to_doubles(y), to_doubles(expected)) < 1e-4, "output");
    });
  }
}

TEST_CASE("only the updates are trained, and the input's gradient is that of the whole layer") {
  for (const std::string base : {"nf4", "none"}) {
    on_ranks(2, [&](int) {
      const auto model = std::make_shared<Pair>(64, 64);
      Planned run(model, DeviceMesh::make({"shard"}, {2}),
                  {qlora(R"({"rank": 2, "base": ")" + base + "\"}"), fsdp({"."})});
      nn::Module& layer = layer_of(*model, 0);
      {
        const NoGrad no_grad;
        const Tensor& b = layer.parameter("lora_B")->value;
        ops::fill_(b, 0.1);
      }
      Tensor x = distribute(rows(64), run.plan.batch_layout());
      x.set_requires_grad();
      backward(ops::sum(ops::square((*model)(x))));
      for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
        const bool update = contains(parameter->name, "lora_");
        check(parameter->value.grad().defined() == update, "gradient of " + parameter->name);
      }
      // By finite differences along a direction.
      const std::vector<double> slope = to_doubles(full_tensor(detached(x.grad())));
      const auto loss = [&](float change) {
        const NoGrad no_grad;
        Tensor moved = ops::clone(rows(64));
        moved.data<float>()[70] += change;
        const Tensor y = (*model)(distribute(moved, run.plan.batch_layout()));
        return full_tensor(ops::sum(ops::square(y))).item();
      };
      const double numeric = (loss(1e-2F) - loss(-1e-2F)) / 2e-2;
      check(std::abs(numeric - slope[70]) < 2e-2 * (1 + std::abs(numeric)),
            "gradient of the input");
    });
  }
}

TEST_CASE("an update that cannot work is refused before the ranks start") {
  CHECK(contains(refused({qlora(R"({"rank": 0})"), replicate()}),
                 "option 'rank' must be a whole number at least 1 and at most 65536 (got 0)"));
  CHECK(contains(refused({qlora(R"({"dropout": 1})"), replicate()}), "option 'dropout'"));
  CHECK(contains(refused({qlora(R"({"base": "nf5"})"), replicate()}), "option 'base'"));
  CHECK(contains(refused({qlora(R"({"alpha": 0})"), replicate()}), "option 'alpha'"));
  CHECK(contains(refused({qlora("{}", {"."}), replicate()}),
                 "the whole model cannot get a low-rank update (expected a Linear, got a Pair)"));
  CHECK(
      contains(refused({qlora("{}"), replicate()}, 40),
               "module 'first': its weight cannot be packed (expected a multiple of 64 inputs, got "
               "40); set base = \"none\""));
  CHECK(contains(refused({qlora("{}", {"first", "second"}),
                          {"ColwiseParallel", "shard", {"first"}},
                          {"RowwiseParallel", "shard", {"second"}}}),
                 "module 'second': its packed weight is split by columns over 2 ranks, which cuts "
                 "blocks of 64"));
  for (const char* module : {"first", "second"}) {
    const std::string own = module;
    const std::string other = own == "first" ? "second" : "first";
    CHECK(contains(
        refusal({qlora(R"({"base": "none"})", {own}), replicate()}, std::make_shared<Tied>()),
        "module '" + own + "': its weight '" + own + ".weight' is also '" + other +
            ".weight', so an update"));
  }
  const parallel::StyleEntry float8{
      .style = "Float8", .on = {"first"}, .options = R"({"all_gather": false})"};
  CHECK(refused({qlora("{}"), float8, replicate()}) != "no error");
  CHECK(refused({float8, qlora("{}"), replicate()}) != "no error");
}
