// Shapes: B rows, T tokens of each, C features of the model, H heads, K heads of keys, D features
// of a head. A rank's local tensors have its part of each.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

/// Which keys are in the document of a query, bool [B, 1, T, T].
Tensor same_document(const Tensor& documents) {
  const std::int64_t rows = documents.size(0);
  const std::int64_t tokens = documents.size(1);
  return ops::eq(ops::view(documents, {rows, 1, tokens, 1}),
                 ops::view(documents, {rows, 1, 1, tokens}));
}

Tensor sinusoids(std::int64_t count, std::int64_t dim, DType dtype) {
  std::vector<double> values;
  for (std::int64_t p = 0; p < count; ++p) {
    for (std::int64_t i = 0; i < dim; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(10000, -static_cast<double>(i - i % 2) / static_cast<double>(dim));
      values.push_back(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return ops::cast(from_values(std::span<const double>(values), {count, dim}), dtype);
}

}  // namespace

void AttentionOptions::check() const {
  const std::pair<const char*, std::int64_t> extents[] = {{"dim", dim}, {"heads", heads}};
  for (const auto& [name, value] : extents) {
    if (value < 1) {
      fail_input({.thing = "attention",
                  .wrong = fmt::format("{} must be at least 1", name),
                  .got = fmt::format("{}", value)});
    }
  }
  if (heads % key_heads() != 0) {
    fail_input({.thing = "attention",
                .wrong = fmt::format("kv_heads must divide heads ({} heads, {} kv_heads)", heads,
                                     key_heads())});
  }
  if (head_dim <= 0 && dim % heads != 0) {
    fail_input(
        {.thing = "attention",
         .wrong = fmt::format("heads must divide dim ({} heads, dim {}), unless head_dim is given",
                              heads, dim)});
  }
  rotary.check(head_extent());
  growth.check();
  if (is_special() && (!causal || dropout > 0)) {
    fail_input({.thing = "attention",
                .wrong = "a window, a softcap, chunks and sinks go neither with dropout of "
                         "probabilities nor with attention that is not causal"});
  }
  if (chunk < 0 || (chunk > 0 && window != 0)) {
    fail_input({.thing = "attention",
                .wrong = "chunks have at least one position, and no window",
                .got = fmt::format("{} positions, window {}", chunk, window)});
  }
  if (chunk > 0 && (keys_of >= 0 || gives_keys)) {
    fail_input({.thing = "attention", .wrong = "layers that share keys and values have no chunks"});
  }
}

InnerAttention::InnerAttention(const AttentionOptions& options) : options_(options) {
  options.check();
}

std::string_view InnerAttention::kind() const { return "InnerAttention"; }
std::vector<std::string> InnerAttention::input_names() const {
  return {"q", "k", "v", "mask", "documents", "sinks"};
}

Tensors InnerAttention::forward(const Tensors& inputs) {
  const Tensor& q = input(inputs, 0);
  const Tensor& k = input(inputs, 1);
  const Tensor& v = input(inputs, 2);
  const Tensor& mask = inputs[3];
  const Tensor& documents = inputs[4];
  if (!mask && dropout() == 0 && options_.causal) {
    const ops::CausalOptions causal{.scale = options_.scale,
                                    .window = options_.window,
                                    .softcap = options_.softcap,
                                    .documents = documents};
    return {inputs[5] ? attention_with_sinks(q, k, v, inputs[5], causal)
                      : ops::causal_attention(q, k, v, causal)};
  }
  if (mask && documents) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "an attention with documents takes no mask",
                .advice = "let the mask hide other documents"});
  }
  if (options_.is_special()) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "an attention with a window, a softcap, chunks or sinks takes no mask"});
  }
  // (B, H, T, D)
  const Tensor by_head = ops::scaled_dot_product_attention(
      ops::transpose(q, 1, 2), ops::transpose(k, 1, 2), ops::transpose(v, 1, 2),
      documents ? same_document(documents) : mask, dropout(),
      options_.causal ? ops::Causal::lower_right : ops::Causal::none, options_.scale);
  return {ops::contiguous(ops::transpose(by_head, 1, 2))};  // (B, T, H, D)
}

AttentionLayer::AttentionLayer(const AttentionOptions& options) : inner_options_(options) {
  options.check();
}

TokenPositions AttentionLayer::positions_of(const Tensor& given, std::int64_t tokens) const {
  if (cache_ == nullptr) {
    return {.given = given};
  }
  TokenPositions positions = cache_->positions_of(given);
  // The cache of another layer has the call's tokens already.
  positions.before -= keys_of() >= 0 && positions.batch == nullptr ? tokens : 0;
  return positions;
}

void AttentionLayer::add_angles(const RotaryOptions& rotary, std::int64_t head_dim) {
  if (rotary.theta > 0 && rotary.factors.exist()) {
    add_buffer("angles", angles_of(rotary, head_dim));
  }
}

Tensor AttentionLayer::rotated(const Tensor& heads, const RotaryOptions& rotary,
                               const TokenPositions& positions) const {
  return rotate(heads, rotary, positions, buffers().empty() ? Tensor() : buffer("angles")->value);
}

void AttentionLayer::check_row(const RotaryOptions& rotary, std::int64_t tokens) const {
  const std::int64_t before = tokens_before();
  const std::int64_t limit = rotary.factors.limit;
  if (!buffers().empty() && before > 0 && before <= limit && before + tokens > limit) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "a cache of a short row cannot become that of a long one",
                .expected = fmt::format("at most {} tokens", limit),
                .got = fmt::format("{}", before + tokens),
                .advice = "clear the cache, and compute the whole row again"});
  }
}

void AttentionLayer::add_inner() {
  inner_ = add_child<InnerAttention>("inner_attention", inner_options_);
}

Tensor AttentionLayer::attended(const Tensor& q, Tensor& k, Tensor& v, const Tensor& mask,
                                const Tensor& documents, const Tensor& positions,
                                const Tensor& sinks) {
  const AttentionOptions& options = inner_options_;
  const bool shares = keys_of() >= 0;
  if (options.chunk > 0 && (mask || (positions && !documents))) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "an attention in chunks takes no mask, and no positions but those of "
                         "documents"});
  }
  Tensor result;  // (B, T, H, D)
  if (cache_ != nullptr && cache_->attends()) {
    if (mask || documents || (is_training() && options.dropout > 0)) {
      fail_input({.thing = fmt::format("module '{}'", name()),
                  .wrong = "with a cache that is split over ranks, or of several texts, attention "
                           "takes no mask and no documents, and drops no probabilities"});
    }
    result = cache_->attend(q, shares ? Tensor() : k, shares ? Tensor() : v,
                            {.scale = options.scale,
                             .window = options.window,
                             .softcap = options.softcap,
                             .causal = options.causal},
                            options.chunk, sinks);
  } else {
    if (cache_ != nullptr && !shares) {
      cache_->append(k, v);
    }
    const bool of_chunks = options.chunk > 0 && k.size(1) > options.chunk;
    if (of_chunks && cache_ != nullptr && !documents) {
      result = inner_of_chunks(q, k, v, sinks);
    } else {
      const Tensor first = of_chunks ? begins_of_chunks(q, documents, positions) : documents;
      result = inner({q, k, v, mask, first, sinks});
    }
  }
  return ops::view(result, {result.size(0), result.size(1), result.size(2) * result.size(3)});
}

Tensor AttentionLayer::inner(const Tensors& inputs) {
  return inputs[5] ? (*inner_)(inputs)[0]
                   : (*inner_)(Tensors{inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]})[0];
}

Tensor AttentionLayer::inner_of_chunks(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& sinks) {
  const std::int64_t chunk = inner_options_.chunk;
  const std::int64_t end = k.size(1);
  const std::int64_t before = end - q.size(1);
  std::vector<Tensor> results;
  for (std::int64_t begin = before; begin < end;) {
    const std::int64_t first = begin / chunk * chunk;
    const std::int64_t next = std::min(end, first + chunk);
    results.push_back(inner({ops::narrow(q, 1, begin - before, next - begin),
                             ops::narrow(k, 1, first, next - first),
                             ops::narrow(v, 1, first, next - first),
                             {},
                             {},
                             sinks}));
    begin = next;
  }
  return results.size() == 1 ? results[0] : ops::cat(results, 1);
}

Tensor AttentionLayer::begins_of_chunks(const Tensor& q, const Tensor& documents,
                                        const Tensor& positions) const {
  const std::int64_t chunk = inner_options_.chunk;
  const auto begins = [&](const Tensor& numbers) {
    const Tensor size =
        full({}, static_cast<double>(chunk), DType::i64, local_of(numbers).device());
    return ops::mul(ops::floor_divide(numbers, size), size);
  };
  if (documents) {
    if (!positions) {
      fail_input({.thing = fmt::format("module '{}'", name()),
                  .wrong = "an attention in chunks needs the positions of documents"});
    }
    return ops::add(documents, begins(positions));
  }
  const Tensor own = begins(local_of(numbers_of(q, {})));  // (T)
  const Tensor of_rows =
      ops::contiguous(ops::expand(own, {local_of(q).size(0), own.size(0)}));  // (B, T)
  if (!q.is_distributed()) {
    return of_rows;
  }
  Layout layout = q.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement placement = layout.placement(axis);
    if (!placement.is_shard(0) && !placement.is_shard(1)) {
      layout = layout.with_placement(axis, Replicate());
    }
  }
  return from_local(of_rows, layout, Dims{q.size(0), q.size(1)});
}

std::vector<std::string> attention_inputs() {
  return {"hidden_states", "mask", "positions", "documents"};
}

Attention::Attention(const AttentionOptions& options) : AttentionLayer(options), options_(options) {
  add_projections();
  add_inner();
  add_head_norms();
  add_angles(options.rotary, options.head_extent());
  if (options.sinks) {
    add_parameter("sinks", std::make_shared<Parameter>(Dims{options.heads}, options.dtype,
                                                       Initialization{Initialization::Kind::normal,
                                                                      options.standard_deviation}));
  }
  attach<LayerSplits>().check = [this](std::span<const int> axes) { check_heads(axes); };
}

void Attention::add_projections() {
  const std::int64_t d = options_.head_extent();
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out, bool bias) {
    return add_child<Linear>(name, in, out, bias, options_.standard_deviation, options_.dtype);
  };
  q_ = projection("q_proj", options_.dim, options_.heads * d, options_.bias);
  if (options_.keys_of < 0) {
    k_ = projection("k_proj", options_.dim, options_.key_heads() * d, options_.bias);
  }
  if (options_.keys_of < 0 && !options_.keys_as_values) {
    v_ = projection("v_proj", options_.dim, options_.key_heads() * d, options_.bias);
  }
  o_ = projection("o_proj", options_.heads * d, options_.dim, options_.output_bias);
  if (options_.gate) {
    gate_ = projection("gate_proj", options_.dim, options_.heads * d, options_.bias);
  }
}

void Attention::add_head_norms() {
  const std::int64_t d = options_.head_extent();
  const auto norm = [&](const char* name, std::int64_t heads) -> Child {
    if (options_.query_key_norm == HeadNorm::each) {
      return add_child<HeadNorms>(name, heads, d, options_.norm, options_.dtype);
    }
    const bool whole = options_.query_key_norm == HeadNorm::whole;
    return attach(name, make_norm(whole ? heads * d : d, options_.norm, options_.dtype));
  };
  if (options_.query_key_norm != HeadNorm::none) {
    q_norm_ = norm("q_norm", options_.heads);
    if (options_.keys_of < 0) {
      k_norm_ = norm("k_norm", options_.key_heads());
    }
  }
  if (options_.value_norm && options_.keys_of < 0) {
    v_norm_ = attach("v_norm", make_norm(d, {.eps = options_.norm.eps, .weight = false}));
  }
}

std::string_view Attention::kind() const { return "Attention"; }
std::vector<std::string> Attention::input_names() const {
  std::vector<std::string> names = attention_inputs();
  names.emplace_back("keys");
  names.emplace_back("values");
  return names;
}

Tensor Attention::clipped(const Tensor& projected) const {
  const double most = options_.clip;
  return most > 0 ? ops::clamp(projected, -most, most) : projected;
}

Tensor Attention::prepared(const Tensor& projected, const Child& norm,
                           const TokenPositions& positions) const {
  const std::int64_t d = options_.head_extent();
  const auto turned = [&](const Tensor& heads) {
    return rotated(heads, options_.rotary, positions);
  };
  if (!norm) {
    return turned(heads_of(clipped(projected), d));
  }
  if (options_.query_key_norm == HeadNorm::whole) {
    return turned(heads_of(clipped((*norm)(projected)), d));
  }
  const Tensor heads = heads_of(clipped(projected), d);
  return options_.norm_after_rotation ? (*norm)(turned(heads)) : turned((*norm)(heads));
}

Tensor Attention::values_of(const Tensor& x, const Tensor& projected_keys) const {
  const Tensor values =
      heads_of(clipped(v_ ? (*v_)(x) : projected_keys), options_.head_extent());  // (B, T, K, D)
  return v_norm_ ? (*v_norm_)(values) : values;
}

Tensors Attention::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);  // (B, T, C)
  const Tensor& mask = inputs[1];      // (B or 1, H or 1, T, keys)
  check_row(options_.rotary, x.size(1));
  const TokenPositions positions = positions_of(inputs[2], x.size(1));  // (B, T)
  const Tensor q =
      grown(prepared((*q_)(x), q_norm_, positions), options_.growth, positions);  // (B, T, H, D)
  Tensor k;                                                                       // (B, T, K, D)
  Tensor v;                                                                       // (B, T, K, D)
  if (options_.keys_of >= 0) {
    k = input(inputs, 4);
    v = input(inputs, 5);
  } else {
    const Tensor projected = (*k_)(x);
    k = prepared(projected, k_norm_, positions);
    v = values_of(x, projected);
  }
  const Tensor sinks = options_.sinks ? parameter("sinks")->use() : Tensor();  // (H)
  Tensor result = attended(q, k, v, mask, inputs[3], inputs[2], sinks);        // (B, T, H D)
  if (gate_) {
    result = ops::mul(result, ops::sigmoid((*gate_)(x)));
  }
  result = (*o_)(result);
  return options_.gives_keys ? Tensors{result, k, v} : Tensors{result};
}

/// Errors (input): heads that are cut where projections are split.
void Attention::check_heads(std::span<const int> axes) const {
  const std::int64_t d = options_.head_extent();
  const std::pair<const Child*, std::int64_t> projections[] = {
      {&q_, options_.heads}, {&k_, options_.key_heads()}, {&v_, options_.key_heads()}};
  for (const auto& [projection, heads] : projections) {
    if (!*projection) {
      continue;  // of another layer
    }
    // Whatever the projection is: its parameters with a row for each feature of the output.
    for (const ParameterPointer& parameter : all_parameters(**projection)) {
      const Layout& layout = parameter->value.layout();
      if (parameter->value.size(0) != heads * d) {
        continue;
      }
      std::int64_t shards = 1;
      for (const int axis : axes) {
        shards *= layout.placement(axis).is_shard(0) ? layout.mesh().axis_size(axis) : 1;
      }
      if (heads % shards != 0) {
        fail_input(
            {.thing = fmt::format("module '{}'", (*projection)->name()),
             .wrong = fmt::format("its {} heads cannot be split over {} ranks", heads, shards),
             .advice = fmt::format(
                 "choose a mesh axis whose size divides model.heads ({}) and model.kv_heads ({})",
                 options_.heads, options_.key_heads())});
      }
    }
  }
}

PositionEmbedding::PositionEmbedding(std::int64_t count, std::int64_t dim, Kind which,
                                     double standard_deviation, DType dtype)
    : count_(count) {
  if (which == Kind::learned) {
    add_parameter("weight", std::make_shared<Parameter>(
                                Dims{count, dim}, dtype,
                                Initialization{Initialization::Kind::normal, standard_deviation}));
    return;
  }
  if (dim % 2 != 0) {
    fail({.thing = "PositionEmbedding",
          .wrong = "a sinusoidal table needs an even dim",
          .got = fmt::format("{}", dim)});
  }
  add_buffer("table", std::make_shared<Buffer>(sinusoids(count, dim, dtype), false));
}

std::string_view PositionEmbedding::kind() const { return "PositionEmbedding"; }
std::vector<std::string> PositionEmbedding::input_names() const {
  return {"hidden_states", "positions"};
}

Tensors PositionEmbedding::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  const Tensor& table =
      parameters().empty() ? buffers()[0].second->value : parameters()[0].second->use();
  if (const Tensor& positions = inputs[1]) {
    return {ops::add(x, ops::embedding(table, positions))};
  }
  if (x.size(1) > count_) {
    fail({.thing = "PositionEmbedding",
          .wrong = "the sequence is too long",
          .expected = fmt::format("at most {} positions", count_),
          .got = fmt::format("{}", x.size(1)),
          .advice = "build it with a larger count"});
  }
  return {ops::add(x, ops::narrow(table, 0, 0, x.size(1)))};
}

}  // namespace tessera::nn
