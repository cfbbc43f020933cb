// Attention over latent features. Shapes: B rows, T tokens, C features of the model, H heads; of a
// head's queries and keys P plain features and R rotated ones, D = P + R; V of its values.
module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {
namespace {

AttentionOptions inner_of(const LatentOptions& options) {
  return {.dim = options.dim,
          .heads = options.heads,
          .head_dim = options.plain_dim + options.rotated_dim,
          .scale = options.scale,
          .standard_deviation = options.standard_deviation,
          .dtype = options.dtype};
}

/// The heads' features (B, T, H, N), of which those from `begin` on.
Tensor part(const Tensor& heads, std::int64_t begin, std::int64_t count) {
  return ops::narrow(heads, 3, begin, count);
}

}  // namespace

void LatentOptions::check() const {
  const std::pair<const char*, std::int64_t> extents[] = {{"dim", dim},
                                                          {"heads", heads},
                                                          {"latent_rank", latent_rank},
                                                          {"plain_dim", plain_dim},
                                                          {"rotated_dim", rotated_dim},
                                                          {"value_dim", value_dim}};
  for (const auto& [name, value] : extents) {
    if (value < 1) {
      fail_input({.thing = "attention over latent features",
                  .wrong = fmt::format("{} must be at least 1", name),
                  .got = fmt::format("{}", value)});
    }
  }
  rotary.check(rotated_dim);
}

LatentAttention::LatentAttention(const LatentOptions& options)
    : AttentionLayer(inner_of(options)), options_(options) {
  options.check();
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out, bool bias) {
    return add_child<Linear>(name, in, out, bias, options.standard_deviation, options.dtype);
  };
  const auto norm = [&](const char* name, std::int64_t features) {
    return attach(name, make_norm(features, {.eps = options.norm_eps}, options.dtype));
  };
  const std::int64_t queries = options.heads * (options.plain_dim + options.rotated_dim);
  if (options.query_rank == 0) {
    q_ = projection("q_proj", options.dim, queries, false);
  } else {
    q_a_ = projection("q_a_proj", options.dim, options.query_rank, options.bias);
    q_norm_ = norm("q_a_layernorm", options.query_rank);
    q_b_ = projection("q_b_proj", options.query_rank, queries, false);
  }
  kv_a_ = projection("kv_a_proj_with_mqa", options.dim, options.latent_rank + options.rotated_dim,
                     options.bias);
  kv_norm_ = norm("kv_a_layernorm", options.latent_rank);
  kv_b_ = projection("kv_b_proj", options.latent_rank,
                     options.heads * (options.plain_dim + options.value_dim), false);
  o_ = projection("o_proj", options.heads * options.value_dim, options.dim, options.bias);
  add_inner();
  add_angles(options.rotary, options.rotated_dim);
}

std::string_view LatentAttention::kind() const { return "LatentAttention"; }
std::vector<std::string> LatentAttention::input_names() const { return attention_inputs(); }

bool LatentAttention::keeps_latents() const {
  const Module& made = *kv_b_;
  return cache() != nullptr && !cache()->is_split() &&
         dynamic_cast<const Linear*>(&made) != nullptr && !low_rank_update_of(made);
}

Tensor LatentAttention::of_latents(const Tensor& q, const Tensor& latent,
                                   const Tensor& rotated_keys) const {
  const std::int64_t plain = options_.plain_dim;
  const std::int64_t value = options_.value_dim;
  const std::int64_t rank = options_.latent_rank;
  // Scores of plain features are q W l, so that queries become those of latent features l.
  const Tensor& weight = kv_b_->parameter("weight")->use();  // (H (P + V), rank)
  const Tensor by_head = ops::view(weight, {weight.size(0) / (plain + value), plain + value, rank});
  const Tensor to_keys = ops::narrow(by_head, 1, 0, plain);        // (H, P, rank)
  const Tensor to_values = ops::narrow(by_head, 1, plain, value);  // (H, V, rank)
  const Tensor of_keys = ops::transpose(
      ops::matmul(ops::transpose(part(q, 0, plain), 1, 2), to_keys), 1, 2);  // (B, T, H, rank)
  const Tensor queries =
      ops::cat(Tensors{of_keys, part(q, plain, options_.rotated_dim)}, 3);  // (B, T, H, rank + R)
  const Tensor keys = ops::cat(Tensors{ops::unsqueeze(latent, 2), rotated_keys}, 3);
  const double width = static_cast<double>(plain + options_.rotated_dim);
  const double scale = options_.scale > 0 ? options_.scale : 1 / std::sqrt(width);
  const Tensor sums = cache()->attend(queries, keys, {}, {.scale = scale});
  const Tensor values = ops::transpose(
      ops::matmul(ops::transpose(part(sums, 0, rank), 1, 2), ops::transpose(to_values, 1, 2)), 1,
      2);  // (B, T, H, V)
  return ops::reshape(values, {values.size(0), values.size(1), values.size(2) * value});
}

Tensors LatentAttention::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);                                   // (B, T, C)
  const TokenPositions positions = positions_of(inputs[2], x.size(1));  // (B, T)
  const std::int64_t plain = options_.plain_dim;
  const std::int64_t rotated = options_.rotated_dim;
  check_row(options_.rotary, x.size(1));
  const std::int64_t rank = options_.latent_rank;
  const auto turned = [&](const Tensor& features) {
    return this->rotated(features, options_.rotary, positions);
  };
  const Tensor projected = q_ ? (*q_)(x) : (*q_b_)((*q_norm_)((*q_a_)(x)));  // (B, T, H D)
  const Tensor heads = heads_of(projected, plain + rotated);                 // (B, T, H, D)
  const Tensor q = ops::cat(Tensors{part(heads, 0, plain), turned(part(heads, plain, rotated))}, 3);
  const Tensor latent = (*kv_a_)(x);  // (B, T, rank + R)
  const Tensor normed = (*kv_norm_)(ops::narrow(latent, 2, 0, rank));
  const Tensor shared =
      turned(ops::unsqueeze(ops::narrow(latent, 2, rank, rotated), 2));  // (B, T, 1, R)
  if (keeps_latents() && !inputs[1] && !inputs[3]) {
    return {(*o_)(of_latents(q, normed, shared))};
  }
  const Tensor keys_values =
      heads_of((*kv_b_)(normed), plain + options_.value_dim);  // (B, T, H, P + V)
  Tensor k = ops::cat(
      Tensors{part(keys_values, 0, plain),
              ops::expand(shared, {shared.size(0), shared.size(1), keys_values.size(2), rotated})},
      3);                                                                    // (B, T, H, D)
  Tensor v = ops::contiguous(part(keys_values, plain, options_.value_dim));  // (B, T, H, V)
  return {(*o_)(attended(q, k, v, inputs[1], inputs[3]))};
}

}  // namespace tessera::nn
