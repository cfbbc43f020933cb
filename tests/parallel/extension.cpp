// Parameters that are gathered in another form: what moves, what a layer gets, and what is refused.
// That steps stay one device's with an extension is in combinations.cpp.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
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
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

constexpr std::int64_t width = 6;

/// Halves of the values, which the layer gets as they were gathered; a count for each rank beside
/// them.
class Halves final : public parallel::ShardExtension {
 public:
  std::vector<parallel::Payload> payloads(
      const parallel::GatheredParameter& gathered) const override {
    return {{gathered.shape, DType::f64}, {{gathered.ranks}, DType::i32}};
  }
  void pack(const parallel::GatheredParameter&, const Tensor& shard,
            std::span<const Tensor> parts) override {
    ops::copy_(parts[0], ops::mul_scalar(shard, 0.5));
    ops::copy_(parts[1], full({1}, static_cast<double>(++packed_), DType::i32));
  }
  bool has_values() const override { return false; }
  void unpack(const parallel::GatheredParameter&, std::span<const Tensor>, const Tensor&) override {
    fail("unpack() was called");
  }

 private:
  int packed_ = 0;
};

/// y = 2 x h^T, where h is what Halves gathers; without it, y = x w^T.
class HalvesLinear final : public nn::Module {
 public:
  HalvesLinear() {
    add_parameter("weight", std::make_shared<nn::Parameter>(
                                Dims{5, width}, DType::f64,
                                nn::Initialization{nn::Initialization::Kind::normal, 1}));
    set_names();
  }
  std::string_view kind() const override { return "HalvesLinear"; }
  Tensors forward(const Tensors& inputs) override {
    const nn::Parameter& weight = *parameters()[0].second;
    const auto& gathered = weight.attached<parallel::GatheredPayloads>().tensors;
    if (gathered.empty()) {
      return {ops::linear(inputs[0], weight.use())};
    }
    counts = to_doubles(gathered[1]);
    has_memory = weight.use().local().storage().has_memory();
    const Tensor halves = gathered[0];
    const LocalMapOptions options{
        .out = {inputs[0].layout()},
        .in_gradients = {inputs[0].layout(), weight.use().layout().with_placement(0, Partial())},
        .out_shapes = {{inputs[0].shape()[0], 5}}};
    return local_map(
        [halves](std::span<const Tensor> in) -> Tensors {
          const Tensor& x = in[0];
          Tensor y;
          {
            const NoGrad no_grad;
            y = ops::mul_scalar(ops::linear(x, halves), 2);
          }
          record_function(
              "halves_linear", in, std::span<const Tensor>(&y, 1),
              [x = detached(x), halves](std::span<const Tensor> grads, std::span<Tensor> out) {
                out[0] = ops::mul_scalar(ops::mm(grads[0], halves), 2);
                out[1] = ops::mm(ops::transpose(grads[0], 0, 1), x);
              });
          return {y};
        },
        std::vector<Tensor>{inputs[0], weight.use()}, options);
  }

  std::vector<double> counts;
  bool has_memory = true;
};

Tensor rows() {
  Tensor x = full({4, width}, 0, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    static_cast<double*>(x.raw_data())[i] = 0.1 * static_cast<double>(i) - 1;
  }
  return x;
}

std::int64_t gathered_bytes(const CommunicationReport& report) {
  std::int64_t bytes = 0;
  for (const Communication& one : report.entries()) {
    bytes += one.operation == "all_gather" ? one.bytes : 0;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a layer computes with what was gathered, and its weight has a gradient but no memory") {
  const auto expected = plain(std::make_shared<HalvesLinear>());
  backward(ops::sum(ops::square((*expected)(rows()))));
  on_ranks(3, [&](int) {  // of the weight, rank 2 has one row, the others have two
    const auto model = std::make_shared<HalvesLinear>();
    Planned run(model, DeviceMesh::make({"shard"}, {3}),
                {extend({"."}, [] { return std::make_shared<Halves>(); }), fsdp({"."})});
    const Tensor x = distribute(rows(), run.plan.batch_layout());
    const auto step = [&](double packed) {
      backward(ops::sum(ops::square((*model)(x))));
      check(model->counts == std::vector<double>(3, packed), "packed once after each write");
      check(!model->has_memory, "the leaf has no memory");
      check(model->parameter("weight")->attached<parallel::GatheredPayloads>().tensors.empty(),
            "freed after backward");
      check(difference(gradients_of(*model), gradients_of(*expected)) < 1e-12, "gradients");
      clear_gradients(*model);
      run.plan.before_optimizer();
    };
    step(1);
    step(1);
    change_values(*model, 1, 0);
    step(2);
  });
}

TEST_CASE("the report counts the bytes of what is gathered") {
  on_ranks(2, [](int rank) {
    const auto bytes = [](const std::vector<parallel::StyleEntry>& entries) {
      Planned run(std::make_shared<Net>(), DeviceMesh::make({"shard"}, {2}), entries);
      const CommunicationReport report;
      run.loss(net_tokens(4, 1));
      return gathered_bytes(report);
    };
    std::int64_t elements = 0;  // of rows that the other rank has
    for (const auto& [name, parameter] : nn::named_parameters(*std::make_shared<Net>())) {
      const Dims& shape = parameter->value.shape();
      const std::int64_t others = (shape[0] + rank) / 2;  // rank 0 has a row more
      elements += contains(name, "up.") ? others * (shape.product() / shape[0]) : 0;
    }
    const std::int64_t plain = bytes({fsdp({"."})});
    const std::int64_t parts = bytes({extend({"blocks.*.up"}, in_two_parts), fsdp({"."})});
    check(elements > 0 && parts - plain == 2 * elements, "bf16 beside f64");
  });
}

TEST_CASE("an extension that would have no effect is refused") {
  const auto two = extend({"head"}, in_two_parts);
  CHECK(contains(
      refusal({two, {"Replicate", "shard", {"."}, "{}", ""}}),
      "Extending: no style gathers parameter 'head.weight', so there is nothing to extend"));
  CHECK(contains(refusal({two, {"FSDP", "shard", {"."}, R"({"ignore": ["head.weight"]})", ""}}),
                 "no style gathers parameter 'head.weight'"));
  CHECK(contains(refusal({fsdp({"."}), two}), "FSDP: must come after Extending"));
  parallel::StyleEntry other = extend({"head"}, in_two_parts);
  other.style = "Other";
  CHECK(contains(refusal({two, other, fsdp({"."})}),
                 "Extending and Other would both extend how parameter 'head.weight' is gathered"));
  parallel::StyleEntry on_axis = two;
  on_axis.axis = "shard";
  CHECK(
      contains(refusal({on_axis, fsdp({"."})}),
               "Extending: works on the wrong number of axes (expected 0, got 1); remove 'axis'"));
  CHECK(contains(refusal({{"FSDP", parallel::AxisNames(), {"."}, "{}", ""}}),
                 "(expected 1 to 2, got 0)"));
}
