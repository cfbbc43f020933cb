// Computing in a narrower type than parameters are stored in: on one device, where a graph with
// explicit casts is the reference, and under every style, where one device is.
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
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using parallel::Precision;
using parallel::set_precision;

std::shared_ptr<Net> narrow_net(DType dtype, const NetOptions& options = {}) {
  auto net = std::make_shared<Net>(options);
  set_precision(*net, {.parameters = dtype});
  return net;
}

const nn::ParameterPointer& head_of(nn::Module& model) {
  return model.children().back().second->parameter("weight");
}

struct Layouts {
  const char* name;
  DeviceMesh mesh;
  std::vector<parallel::StyleEntry> entries;
};

std::vector<Layouts> layouts() {
  const DeviceMesh pair = DeviceMesh::make({"shard"}, {2});
  const DeviceMesh square = DeviceMesh::make({"outer", "shard"}, {2, 2});
  const parallel::StyleEntry columns{"ColwiseParallel", "shard", {"blocks.*.up"}};
  const parallel::StyleEntry rows{"RowwiseParallel", "shard", {"blocks.*.down"}};
  const parallel::StyleEntry rest{"NoParallel", "shard", {"embed", "head", "blocks.*.norm"}};
  const auto fsdp_with = [](const char* axis, const char* options) {
    return parallel::StyleEntry{"FSDP", axis, {"blocks.*", "."}, options};
  };
  return {
      {"Replicate", pair, {{"Replicate", "shard", {"."}}}},
      {"FSDP", pair, {fsdp_with("shard", "{}")}},
      {"FSDP, whole gradients", pair, {fsdp_with("shard", R"({"accumulate": "whole"})")}},
      {"FSDP, small ones replicated", pair, {fsdp_with("shard", R"({"replicate_below": 8})")}},
      {"FSDP by columns",
       pair,
       {fsdp_with("shard", R"({"shard_dims": [{"on": ["**.up.weight"], "dim": 1}]})")}},
      {"hybrid", square, {{"Replicate", "outer", {"."}}, fsdp_with("shard", "{}")}},
      {"tensor parallel and FSDP", square, {columns, rows, fsdp_with("outer", "{}")}},
  };
}

/// Two micro-batches, then the finisher.
Named trained_gradients(nn::Module& model, const std::function<Tensor(const Tensor&)>& loss) {
  parallel::GradientFinisher finisher;
  const std::vector<nn::ParameterPointer> parameters = nn::all_parameters(model);
  finisher.begin(parameters);
  for (const int micro : {0, 1}) {
    const StepScope sync([&](StepContext& step) { step.sums_gradients = micro == 1; });
    backward(loss(net_tokens(4, micro)));
  }
  finisher.finish(parameters);
  return gradients_of(model);
}

}  // namespace

TEST_CASE("a narrow copy computes what casts in the graph compute, bit for bit") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool tied : {false, true}) {
      for (const bool checkpointing : {false, true}) {
        const NetOptions net{.tied = tied, .checkpointing = checkpointing};
        const auto model = plain(narrow_net(dtype, net));
        backward(plain_loss(*model, net_tokens(4, 1)));

        const auto expected = plain(std::make_shared<Net>(net));
        for (const nn::ParameterPointer& p : nn::all_parameters(*expected)) {
          p->computed = ops::cast(p->value, dtype);
        }
        backward(plain_loss(*expected, net_tokens(4, 1)));
        CHECK(gradients_of(*model) == gradients_of(*expected));
        CHECK(head_of(*model)->value.dtype() == DType::f64);
        CHECK(head_of(*model)->value.grad().dtype() == DType::f64);
        CHECK(head_of(*model)->computed.dtype() == dtype);
      }
    }
  }
}

TEST_CASE("narrow copies follow writes, freezing and evaluation") {
  const auto model = plain(narrow_net(DType::f32));
  const auto loss = [&] { return plain_loss(*model, net_tokens(4, 1)); };
  const double first = loss().item();
  CHECK(loss().item() == first);
  change_values(*model, 0.5, 0.1);
  CHECK_FALSE(loss().item() == first);
  {
    const NoGrad evaluation;
    const double before = loss().item();
    change_values(*model, 2, 0);
    CHECK_FALSE(loss().item() == before);
  }
  head_of(*model)->value.set_requires_grad(false);
  backward(loss());
  CHECK_FALSE(head_of(*model)->value.grad().defined());
  head_of(*model)->value.set_requires_grad(true);
  clear_gradients(*model);
  backward(loss());
  const Named gradients = gradients_of(*model);
  clear_gradients(*model);
  const Tensor before = loss();
  change_values(*model, 0.5, 0.1);
  loss();
  backward(before);  // of the copies that it was computed with
  CHECK(gradients_of(*model) == gradients);
}

TEST_CASE("inputs and outputs are cast as the precision says") {
  const auto linear = [](const Precision& precision) {
    auto layer = std::make_shared<nn::Linear>(4, 3, true, 0.5);
    layer->set_names("layer");
    set_precision(*layer, precision);
    nn::materialize(*layer);
    return layer;
  };
  const Tensor x = full({2, 4}, 0.5, DType::f32);
  CHECK((*linear({.parameters = DType::bf16}))(x).dtype() == DType::bf16);
  CHECK((*linear({.parameters = DType::bf16, .outputs = DType::f32}))(x).dtype() == DType::f32);
  CHECK_FALSE(error_of([&] { (*linear({.parameters = DType::bf16, .cast_inputs = false}))(x); }) ==
              "no error");
  auto mixed = std::make_shared<Net>();
  set_precision(*mixed, {.parameters = DType::bf16});
  set_precision(*mixed->children().back().second, {.parameters = DType::f32});
  const auto model = plain(mixed);
  CHECK((*model)(net_tokens(2, 1)).dtype() == DType::f32);  // the head's
}

TEST_CASE("every layout computes in the narrow type what one device does") {
  const auto expected = plain(narrow_net(DType::f32));
  const Named gradients = trained_gradients(
      *expected, [&](const Tensor& tokens) { return plain_loss(*expected, tokens); });
  const auto exact = plain(std::make_shared<Net>());
  const Named wide =
      trained_gradients(*exact, [&](const Tensor& tokens) { return plain_loss(*exact, tokens); });
  CHECK(difference(gradients, wide) > 1e-8);  // it is narrower
  for (const Layouts& where : layouts()) {
    INFO(where.name);
    on_ranks(where.mesh.size(), [&](int) {
      Planned run(narrow_net(DType::f32), where.mesh, where.entries);
      const Named got =
          trained_gradients(*run.model, [&](const Tensor& tokens) { return run.loss(tokens); });
      const double far = difference(got, gradients);
      check(far < 1e-4, std::string(where.name) + ": " + std::to_string(far));
      for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
        check(p->value.dtype() == DType::f64 && p->value.grad().dtype() == DType::f64,
              p->name + ": f64");
        check(p->value.grad().layout() == p->value.layout(), p->name + ": layout");
      }
    });
  }
}

TEST_CASE("a style's other options leave the precision that a model has") {
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
  const std::map<std::string, DType> expected = {{R"({"output_dtype": "f32"})", DType::bf16},
                                                 {R"({"cast_inputs": false})", DType::bf16},
                                                 {R"({"param_dtype": "f32"})", DType::f32}};
  for (const auto& [options, dtype] : expected) {
    on_ranks(2, [&](int) {
      Planned run(narrow_net(DType::bf16), mesh, {{"FSDP", "shard", {"blocks.*", "."}, options}});
      const Tensor loss = run.loss(net_tokens(4, 1));
      check(head_of(*run.model)->computed.dtype() == dtype, options);
      const bool cast = options.find("output_dtype") != std::string::npos;
      check(loss.dtype() == (cast ? DType::f32 : dtype), options + ": outputs");
    });
  }
}

TEST_CASE("gradients in 16 bits are summed in f32, and rounded where the option says so") {
  // Each rank's gradient is its input's sum: 256 and 1, whose sum bf16 does not have.
  for (const char* type : {"f32", "bf16"}) {
    on_ranks(2, [&](int rank) {
      const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
      auto layer = std::make_shared<nn::Linear>(1, 2, false, 0.5);
      Planned run(layer, mesh,
                  {{"FSDP",
                    "shard",
                    {"."},
                    std::string(R"({"param_dtype": "bf16", "reduce_dtype": ")") + type + "\"}"}});
      const Tensor x =
          from_local(full({1, 1}, rank == 0 ? 256 : 1, DType::f32), run.plan.batch_layout());
      backward(ops::sum((*run.model)(x)));
      const double got = to_doubles(layer->parameter("weight")->value.grad().local())[0];
      check(got == (std::string(type) == "f32" ? 257 : 256), std::to_string(got));
    });
  }
}

TEST_CASE("a precision that a model cannot have is refused") {
  const auto refused = [](const Precision& precision) {
    return error_of([&] {
      Net net;
      set_precision(net, precision);
    });
  };
  CHECK(
      refused({.parameters = DType::i64}) ==
      "precision: it is not a floating type to compute with (expected bf16, f16 or f32, got i64)");
  CHECK(refused({.outputs = DType::boolean}).find("not a floating type") != std::string::npos);
  CHECK(error_of([] {
          nn::Linear layer(2, 2, false, 0.5);
          layer.set_names("layer");
          set_precision(layer, {.parameters = DType::f64});
        }) ==
        "precision: parameter 'layer.weight' cannot compute with f64 (expected a narrower type "
        "than f32); leave it out to compute with the type in which parameters are stored");
  CHECK(error_of([] {
          Net net;
          nn::materialize(net);
          set_precision(net, {.parameters = DType::bf16});
        }).find("has memory already") != std::string::npos);
}
