// A plugin with which FSDP gathers a quarter of the bytes: each row of a shard is
// gathered as 8-bit codes and one scale. The shards, which the optimizer updates, and the gradients
// stay as they are. In a config:
//   [[parallel]]
//   style = "Int8Gather"
//   on = ["model.layers.*.mlp.*_proj"]     # before the entry of FSDP
// docs/fully-sharded-programs.md explains it.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

import tessera.base;
import tessera.nn;
import tessera.ops;
import tessera.parallel;
import tessera.plugin;
import tessera.tensor;

namespace {

using namespace tessera;
using namespace tessera::parallel;

/// The shape of a number for each row, which is the first dim.
Dims rows_of(const Dims& shape) {
  Dims rows = shape;
  for (int dim = 1; dim < rows.size(); ++dim) {
    rows[dim] = 1;
  }
  return rows;
}

class Int8 final : public ShardExtension {
 public:
  std::vector<Payload> payloads(const GatheredParameter& gathered) const override {
    return {{gathered.shape, DType::u8}, {rows_of(gathered.shape), DType::f32}};
  }

  /// code = round(x / scale) + 128, where scale = max |row| / 127.
  void pack(const GatheredParameter&, const Tensor& shard, std::span<const Tensor> parts) override {
    Dims inner;
    for (int dim = 1; dim < shard.dims(); ++dim) {
      inner.push_back(dim);
    }
    const Tensor largest =
        inner.size() == 0 ? ops::abs(shard) : ops::amax(ops::abs(shard), inner, true);
    const Tensor scale = ops::clamp(ops::mul_scalar(largest, 1.0 / 127), 1e-30, 1e30);
    ops::copy_(parts[0],
               ops::cast(ops::add_scalar(ops::round(ops::div(shard, scale)), 128), DType::u8));
    ops::copy_(parts[1], ops::cast(scale, DType::f32));
  }

  void unpack(const GatheredParameter&, std::span<const Tensor> payloads,
              const Tensor& values) override {
    const Tensor codes = ops::add_scalar(ops::cast(payloads[0], DType::f32), -128);
    ops::copy_(values, ops::cast(ops::mul(codes, payloads[1]), values.dtype()));
  }
};

class Int8Gather final : public ParallelStyle {
 public:
  StyleFacts facts() const override { return {.extends_gathers = true, .most_axes = 0}; }
  void apply(const StyleTarget& target) override {
    for (const auto& [name, parameter] : target.module.parameters()) {
      set_extension(*parameter, std::make_shared<Int8>(), target.entry);
    }
  }
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("Int8Gather",
                               [](Options&) { return std::make_unique<Int8Gather>(); });
}
