#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

#include "context_attention.hpp"
#include "ring.hpp"

namespace context {
namespace {

using namespace tessera;

/// In forward, where errors name the module.
[[noreturn]] void refuse(std::string wrong, std::string advice) {
  fail_input({.thing = "attention", .wrong = std::move(wrong), .advice = std::move(advice)});
}

/// Over how many ranks the heads of x [B, T, H, D] would be split: those of the axis, and of others
/// that split them already.
std::int64_t parts_of_heads(const Tensor& x, int axis) {
  const Layout& layout = x.layout();
  std::int64_t parts = layout.mesh().axis_size(axis);
  for (int other = 0; other < layout.ndim(); ++other) {
    if (other != axis && layout.placement(other).is_shard(2)) {
      parts *= layout.mesh().axis_size(other);
    }
  }
  return parts;
}

}  // namespace

ContextAttention::ContextAttention(const std::shared_ptr<nn::InnerAttention>& whole,
                                   const Settings& settings)
    : options_(whole->options()), settings_(settings), whole_(attach("whole", whole)) {}

std::string_view ContextAttention::kind() const { return "ContextAttention"; }
std::vector<std::string> ContextAttention::input_names() const {
  return {"q", "k", "v", "mask", "documents", "sinks"};
}

void ContextAttention::split_along(int axis) {
  axis_ = axis;
  if (settings_.options.form == ExchangeKind::ring && (options_.dropout > 0 || options_.sinks)) {
    const bool drops = options_.dropout > 0;
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = drops ? "a ring cannot drop probabilities of attention"
                               : "a ring takes no sinks of attention",
                .advice = std::string("set the style's option form = \"all_to_all\"") +
                          (drops ? ", or the model's dropout to 0" : "")});
  }
}

void Decisions::add(const std::string& text) {
  if (std::ranges::find(texts, text) == texts.end()) {
    texts.push_back(text);
  }
}

ExchangeKind ContextAttention::form_of(const Tensors& inputs) {
  const Tensor& q = input(inputs, 0);
  const Tensor& k = input(inputs, 1);
  const bool automatic = settings_.options.form == ExchangeKind::automatic;
  const bool masked =
      inputs[3].defined() || inputs[5].defined() || (is_training() && options_.dropout > 0);
  if (settings_.options.form == ExchangeKind::ring) {
    if (masked) {
      refuse("a ring takes no mask and no sinks, and drops no probabilities",
             "set the style's option form = \"all_to_all\"");
    }
    return ExchangeKind::ring;
  }
  const std::int64_t parts = parts_of_heads(q, axis_);
  const std::string heads =
      fmt::format("its {} heads ({} of keys and values)", q.size(2), k.size(2));
  if (q.size(2) % parts == 0 && k.size(2) % parts == 0) {
    if (automatic && masked) {
      settings_.decisions->add("all_to_all, as a ring takes neither masks nor sinks nor dropout");
    }
    return automatic && !masked ? cheaper_form(inputs) : ExchangeKind::all_to_all;
  }
  if (automatic && !masked) {
    settings_.decisions->add(
        fmt::format("ring, as {} cannot be split over {} ranks", heads, parts));
    return ExchangeKind::ring;
  }
  refuse(fmt::format("{} cannot be split over {} ranks", heads, parts),
         masked ? "choose a smaller mesh axis: the form \"ring\", which splits no heads, takes "
                  "neither masks nor sinks nor dropout of probabilities"
                : "set the style's option form = \"ring\", which splits no heads");
}

ExchangeKind ContextAttention::cheaper_form(const Tensors& inputs) {
  const Tensor& q = inputs[0];
  const Dims own = local_shape(*q.spec());
  const Dims of_keys = local_shape(*inputs[1].spec());
  const DeviceMesh& mesh = q.layout().mesh();
  const auto bytes_of = [](DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); };
  const AttentionSize size{.ranks = mesh.axis_size(axis_),
                           .batch = own[0],
                           .tokens = own[1],
                           .heads = own[2],
                           .kv_heads = of_keys[2],
                           .key_dim = own[3],
                           .value_dim = inputs[2].size(3),
                           .element_bytes = bytes_of(q.dtype()),
                           .sum_bytes = std::max(bytes_of(q.dtype()), bytes_of(DType::f32)),
                           .sight = {.causal = options_.causal, .window = options_.window},
                           .balance = settings_.options.balance};
  const Link link = link_of(mesh, axis_);
  if (last_.form != ExchangeKind::automatic && last_.size == size && last_.link == link) {
    return last_.form;
  }
  const ExposedSeconds seconds = exposed(size, link, 1e9 * settings_.options.gflops);
  const bool ring = seconds.ring < seconds.all_to_all;
  last_ = {
      .size = size, .link = link, .form = ring ? ExchangeKind::ring : ExchangeKind::all_to_all};
  if (is_training()) {  // an evaluation may have rows of another number
    settings_.decisions->add(
        fmt::format("{}: of a layer's communication for {}, a ring would not hide {:.3g} ms, and "
                    "all_to_all {:.3g} ms",
                    ring ? "ring" : "all_to_all", count_text(size.batch, "row"), 1e3 * seconds.ring,
                    1e3 * seconds.all_to_all));
  }
  return last_.form;
}

Tensors ContextAttention::forward(const Tensors& inputs) {
  const Tensor& q = input(inputs, 0);
  if (!q.is_distributed() || q.layout().mesh().axis_size(axis_) == 1) {
    return (*whole_)(inputs);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const Tensor& x = input(inputs, i);
    if (!x.layout().placement(axis_).is_shard(1) || !shards_evenly(x.shape(), x.layout())) {
      refuse(fmt::format("its input '{}' is {}", input_names()[i], to_string(*x.spec())),
             fmt::format("along axis '{}' it must be Shard(1), in equal parts",
                         x.layout().mesh().axis_name(axis_)));
    }
  }
  return {form_of(inputs) == ExchangeKind::ring ? by_ring(inputs) : by_heads(inputs)};
}

Tensor ContextAttention::by_heads(const Tensors& inputs) {
  const Layout tokens = input(inputs, 0).layout();
  const auto along_axis = [&](const Tensor& x, Placement placement) {
    return x && x.is_distributed() ? redistribute(x, x.layout().with_placement(axis_, placement))
                                   : x;
  };
  const Tensor& mask = inputs[3];
  const bool mask_has_heads = mask && mask.dims() == 4 && mask.size(1) > 1;
  const Tensors by_heads{
      along_axis(inputs[0], Shard(2)),    along_axis(inputs[1], Shard(2)),
      along_axis(inputs[2], Shard(2)),    along_axis(mask, mask_has_heads ? Shard(1) : Replicate()),
      along_axis(inputs[4], Replicate()), inputs[5]};
  return redistribute((*whole_)(by_heads)[0], tokens);
}

Tensor ContextAttention::by_ring(const Tensors& inputs) const {
  const Tensor& q = inputs[0];
  const Layout layout = q.layout();
  const DeviceMesh& mesh = layout.mesh();
  const RingAxis axis{.group = ops::GroupArgument::of(mesh.group(axis_, current_rank())),
                      .name = mesh.axis_name(axis_)};
  const RingOptions options{.scale = options_.scale,
                            .softcap = options_.softcap,
                            .sight = {.causal = options_.causal, .window = options_.window},
                            .balance = settings_.options.balance};
  Dims shape = q.shape();
  shape[3] = inputs[2].size(3);
  const std::vector<Tensor> given{q, inputs[1], inputs[2], inputs[4]};
  return local_map(
      [&](std::span<const Tensor> locals) {
        return Tensors{ring_attention(locals[0], locals[1], locals[2], locals[3], options, axis)};
      },
      given,
      {.in = {layout, layout, layout, Layout()},
       .out = {layout},
       .in_gradients = {layout, layout, layout, Layout()},
       .out_shapes = {shape}})[0];
}

}  // namespace context
