#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.nf4;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

#include "lora_linear.hpp"
#include "nf4.hpp"

namespace qlora {

using namespace tessera;

namespace {

nn::ParameterPointer parameter_of(const Dims& shape, DType dtype, const nn::Initialization& first) {
  return std::make_shared<nn::Parameter>(shape, dtype, first);
}

/// The norm of each row of W + scale B A, [out]. Where the columns are sharded, the ranks
/// all-reduce one number for each row.
Tensor row_norms(const Tensor& weight, const Tensor& a, const Tensor& b, double scale) {
  const NoGrad no_grad;
  const Tensor sum = ops::add(weight, ops::mul_scalar(ops::mm(b, a), scale));
  return ops::norm(sum, 2, {1}, false, true);
}

}  // namespace

LoraLinear::LoraLinear(const nn::Module& base, const nn::LowRankUpdate& update)
    : update_(update), shape_(base.parameter("weight")->value.shape()) {
  using Kind = nn::Initialization::Kind;
  const DType dtype = base.parameter("weight")->value.dtype();
  for (const auto& [name, parameter] : base.parameters()) {
    if (!is_packed() || name != "weight") {
      add_parameter(name, parameter);
    }
  }
  if (is_packed()) {
    if (shape_[1] % block_size != 0) {
      fail_input({.thing = fmt::format("module '{}'", base.name()),
                  .wrong = "its weight cannot be packed",
                  .expected = fmt::format("a multiple of {} inputs", block_size),
                  .got = fmt::format("{}", shape_[1]),
                  .advice = "set base = \"none\", or leave the module out"});
    }
    const nn::Initialization packed{.kind = Kind::packed};
    const auto add = [&](const char* name, const Dims& shape, DType type) {
      const nn::ParameterPointer parameter = parameter_of(shape, type, packed);
      parameter->value.set_requires_grad(false);
      add_parameter(name, parameter);
    };
    add("codes", {shape_[0], shape_[1] / 2}, DType::u8);
    add("scales", {shape_[0], shape_[1] / block_size}, DType::i8);
    add("factors", {scale_blocks_of(shape_.product())}, DType::f32);
    add("mean", {1}, DType::f32);
    const auto layout = [this] {
      const Tensor& codes = parameter("codes")->value;
      return codes.is_distributed() ? codes.layout() : Layout();
    };
    attach<nn::PackedWeights>().weights.push_back(
        {.name = "weight",
         .shape = shape_,
         .initialization = base.parameter("weight")->initialization,
         .layout = layout,
         .pack = [this](const Tensor& values) { pack(values); }});
  }
  // PEFT's kaiming_uniform_(a = sqrt(5)): sqrt(6 / (1 + 5) / in).
  const double bound = 1 / std::sqrt(static_cast<double>(shape_[1]));
  add_parameter("lora_A", parameter_of({update.rank, shape_[1]}, dtype,
                                       {.kind = Kind::uniform, .bound = bound}));
  add_parameter("lora_B", parameter_of({shape_[0], update.rank}, dtype, {.kind = Kind::zeros}));
  if (update.dora) {
    add_parameter("magnitude", parameter_of({shape_[0]}, dtype, {.kind = Kind::ones}));
  }
  attach<nn::TrainedUpdate>().update = update;
  nn::LayerSplits& declared = attach<nn::LayerSplits>();
  declared.declared = [this] { return splits(); };
  declared.check = [this](std::span<const int> axes) { check_blocks(axes); };
}

Tensor LoraLinear::bias() const {
  const auto found =
      std::ranges::find(parameters(), "bias", [](const auto& own) { return own.first; });
  return found == parameters().end() ? Tensor() : found->second->use();
}

std::function<Tensor()> LoraLinear::unpacker() const {
  return [codes = parameter("codes"), scales = parameter("scales"), factors = parameter("factors"),
          mean = parameter("mean"), like = parameter("lora_A"), shape = shape_] {
    const NoGrad no_grad;
    const auto whole = [](const nn::ParameterPointer& parameter) {
      const Tensor& x = parameter->use();
      return x.is_distributed() ? full_tensor(x) : x;  // gathered unless all ranks have it
    };
    const Tensor& c = codes->use();
    const std::int64_t row_blocks = shape[1] / block_size;
    std::int64_t first = 0;
    if (c.is_distributed()) {
      const Dims offset = local_part(c.shape(), c.layout(), current_rank()).offset;
      first = offset[0] * row_blocks + 2 * offset[1] / block_size;
    }
    const Tensor local = ops::cast(dequantize(local_of(c), local_of(scales->use()), whole(factors),
                                              whole(mean), first, row_blocks),
                                   like->use().dtype());
    return c.is_distributed() ? from_local(local, c.layout(), shape) : local;
  };
}

Tensor LoraLinear::product(const Tensor& x, const Tensor& weight) const {
  if (!is_packed()) {
    return ops::linear(x, weight);
  }
  Tensor y;
  {
    const NoGrad no_grad;
    y = ops::linear(x, weight);
  }
  record_function("packed_linear", std::span<const Tensor>(&x, 1), std::span<const Tensor>(&y, 1),
                  [unpack = unpacker()](std::span<const Tensor> grads, std::span<Tensor> out) {
                    const NoGrad no_grad;
                    out[0] = ops::matmul(grads[0], unpack());
                  });
  return y;
}

Tensors LoraLinear::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  if (!nn::uses_update(*this)) {
    const Tensor plain = product(x, weight());
    const Tensor own_bias = bias();
    return {own_bias ? ops::add(plain, own_bias) : plain};
  }
  const Tensor& a = parameter("lora_A")->use();
  const Tensor& b = parameter("lora_B")->use();
  const double scale = update_.scale();
  const bool drops = update_.dropout > 0 && is_training();
  const Tensor dropped = drops ? ops::dropout(x, update_.dropout, by_batch_row("dropout")) : x;
  const Tensor update = ops::mul_scalar(ops::linear(ops::linear(dropped, a), b), scale);
  const Tensor whole = weight();
  const Tensor plain = product(x, whole);
  Tensor y;
  if (update_.dora) {
    const Tensor factor = ops::div(parameter("magnitude")->use(), row_norms(whole, a, b, scale));
    // W x itself is not dropped: only what DoRA adds to it is.
    const Tensor seen = drops ? product(dropped, whole) : plain;
    y = ops::mul(ops::add(seen, update), factor);
    if (drops) {
      y = ops::add(y, ops::sub(plain, seen));
    }
  } else {
    y = ops::add(plain, update);
  }
  const Tensor b_out = bias();
  return {b_out ? ops::add(y, b_out) : y};
}

std::vector<nn::LayerSplit> LoraLinear::splits() const {
  nn::LayerSplit columns{.name = "columns", .inputs = {Replicate()}, .output = Shard(-1)};
  nn::LayerSplit rows{.name = "rows", .inputs = {Shard(-1)}, .output = Partial()};
  bool has_bias = false;
  for (const auto& [name, parameter] : parameters()) {
    has_bias = has_bias || name == "bias";
    const bool of_all = name == "factors" || name == "mean";
    if (name != "lora_A" && !of_all) {
      columns.parameters.push_back({parameter, Shard(0)});
    }
    if (name == "weight" || name == "codes" || name == "scales" || name == "lora_A") {
      rows.parameters.push_back({parameter, Shard(1)});
    }
  }
  // A bias cannot be added to the terms of a sum.
  return has_bias ? std::vector<nn::LayerSplit>{std::move(columns)}
                  : std::vector<nn::LayerSplit>{std::move(columns), std::move(rows)};
}

void LoraLinear::check_blocks(std::span<const int> axes) const {
  if (!is_packed() || !parameter("scales")->value.is_distributed()) {
    return;
  }
  const Layout& layout = parameter("scales")->value.layout();
  for (const int axis : axes) {
    const std::int64_t ranks = layout.mesh().axis_size(axis);
    if (layout.placement(axis) == Shard(1) && (shape_[1] / ranks) % block_size != 0) {
      fail_input({.thing = fmt::format("module '{}'", name()),
                  .wrong = fmt::format("its packed weight is split by columns over {} ranks, which "
                                       "cuts blocks of {}",
                                       ranks, block_size),
                  .advice = "use fewer ranks on the axis, or base = \"none\""});
    }
  }
}

void LoraLinear::pack(const Tensor& values) const {
  const NoGrad no_grad;
  const Tensor local = ops::contiguous(ops::to_device(local_of(values), cpu));
  const auto elements = static_cast<std::size_t>(local.numel());
  const std::span<const float> weight(local.data<float>(), elements);
  const Tensor& codes = parameter("codes")->value;
  const auto& [out, in] = std::pair(shape_[0], shape_[1] / block_size);

  const Dims rows = local.shape();
  const Tensor scales = empty({rows[0], rows[1] / block_size}, DType::f32);
  const std::span<float> own(scales.data<float>(), elements / block_size);
  tessera::nf4::block_scales(weight, own);
  const Tensor coded = empty({rows[0], rows[1] / 2}, DType::u8);
  tessera::nf4::encode(weight, own, {coded.data<std::uint8_t>(), elements / 2});
  const auto write = [](const Tensor& into, const Tensor& from) {
    ops::copy_(local_of(into), ops::to_device(from, into.device()));
  };
  write(codes, coded);

  // The scales of the whole weight, a number for 64 elements, on every rank.
  Tensor all = scales;
  if (codes.is_distributed()) {
    all = full_tensor(from_local(scales, codes.layout(), Dims{out, in}));
  }
  const auto count = static_cast<std::size_t>(all.numel());
  all = ops::contiguous(all);
  const Tensor factors = empty({scale_blocks_of(shape_.product())}, DType::f32);
  const Tensor small = empty({out, in}, DType::i8);
  tessera::nf4::PackedScales packed{
      .factors = {factors.data<float>(), static_cast<std::size_t>(factors.numel())},
      .scales = {small.data<std::int8_t>(), count}};
  tessera::nf4::pack_scales({all.data<float>(), count}, packed);
  const auto write_part = [&](const char* name, const Tensor& whole) {
    const Tensor& into = parameter(name)->value;
    write(into, into.is_distributed() ? distribute(whole, into.layout()).local() : whole);
  };
  write_part("scales", small);
  write_part("factors", factors);
  write_part("mean", full({1}, packed.mean, DType::f32));
}

void LoraLinear::set_magnitude() {
  const NoGrad no_grad;
  const Tensor& into = parameter("magnitude")->value;
  Tensor norms = ops::norm(weight(), 2, {1}, false, true);
  if (into.is_distributed()) {
    norms = redistribute(norms, into.layout());
  }
  ops::copy_(into, norms);
}

}  // namespace qlora
