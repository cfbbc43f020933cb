// Shapes: B rows, T tokens of each (patches, of images), C features.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.encoders;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import :encoder;

namespace tessera::encoders {
namespace {

/// The module's result; x itself where there is none.
Tensor through(const nn::Child& module, Tensor x) { return module ? (*module)(x) : std::move(x); }

}  // namespace

void EncoderShape::check() const {
  std::vector<std::pair<const char*, std::int64_t>> sizes = {
      {"dim", dim}, {"layers", layers}, {"heads", heads}, {"ffn_dim", ffn_dim}};
  if (takes_images()) {
    sizes.insert(sizes.end(),
                 {{"image_size", image_size}, {"patch_size", patch_size}, {"channels", channels}});
  } else {
    sizes.emplace_back("max_positions", max_positions);
  }
  if (tells_classes()) {
    sizes.emplace_back("classes", classes);
  }
  for (const auto& [key, value] : sizes) {
    if (value < 1) {
      fail_input({.thing = "encoder",
                  .wrong = fmt::format("{} must be at least 1", key),
                  .got = fmt::format("{}", value)});
    }
  }
  if (dim % heads != 0) {
    fail_input({.thing = "encoder",
                .wrong = fmt::format("heads must divide dim ({} heads, dim {})", heads, dim)});
  }
  if (takes_images() && image_size % patch_size != 0) {
    fail_input({.thing = "encoder",
                .wrong = fmt::format("patch_size must divide image_size (patches of {}, images "
                                     "of {})",
                                     patch_size, image_size)});
  }
  if (takes_images() &&
      (head == EncoderHead::masked_tokens || head == EncoderHead::token_classes)) {
    fail_input({.thing = "encoder", .wrong = "images have no tokens to be told"});
  }
  if (transform_activation != nn::Activation::gelu &&
      transform_activation != nn::Activation::gelu_tanh) {
    fail_input({.thing = "encoder", .wrong = "the activation of its head must be a gelu"});
  }
  for (std::int64_t layer = 0; layer < std::min<std::int64_t>(layers, 2); ++layer) {
    attention(layer).check();
  }
}

bool EncoderShape::is_local(std::int64_t layer) const {
  return std::ranges::find(local_layers, layer) != local_layers.end();
}

std::int64_t EncoderShape::image_positions() const {
  const std::int64_t side = image_size / patch_size;
  return side * side + 1;
}

nn::NormOptions EncoderShape::norm() const {
  return {.kind = nn::NormOptions::Kind::layer, .eps = norm_eps, .bias = norm_bias};
}

nn::AttentionOptions EncoderShape::attention(std::int64_t layer) const {
  return {.dim = dim,
          .heads = heads,
          .bias = bias,
          .output_bias = output_bias,
          .causal = false,
          .rotary = {.theta = is_local(layer) ? local_rope_theta : rope_theta},
          .dropout = probability_dropout,
          .standard_deviation = standard_deviation,
          .dtype = dtype};
}

nn::FeedForwardOptions EncoderShape::feed_forward() const {
  return {.dim = dim,
          .width = ffn_dim,
          .gated = gated,
          .activation = activation,
          .bias = ffn_bias,
          .standard_deviation = standard_deviation,
          .dtype = dtype};
}

TokenInputs::TokenInputs(const EncoderShape& shape) : padding_(shape.padding) {
  const double deviation = shape.standard_deviation;
  tokens_ = add_child<nn::Embedding>("tokens", shape.vocab, shape.dim, deviation, shape.dtype);
  if (shape.token_types > 0) {
    types_ =
        add_child<nn::Embedding>("types", shape.token_types, shape.dim, deviation, shape.dtype);
  }
  if (shape.learned_positions) {
    positions_ = add_child<nn::PositionEmbedding>("positions", shape.max_positions, shape.dim,
                                                  nn::PositionEmbedding::Kind::learned, deviation,
                                                  shape.dtype);
  }
  if (shape.embedding_norm) {
    norm_ = attach("norm", nn::make_norm(shape.dim, shape.norm(), shape.dtype));
  }
  if (shape.input_dropout > 0) {
    dropout_ = add_child<nn::Dropout>("dropout", shape.input_dropout);
  }
}

std::string_view TokenInputs::kind() const { return "TokenInputs"; }
std::vector<std::string> TokenInputs::input_names() const {
  return {"input_ids", "token_type_ids"};
}

Tensors TokenInputs::forward(const Tensors& inputs) {
  const Tensor& ids = input(inputs, 0);  // (B, T)
  Tensor x = (*tokens_)(ids);            // (B, T, C)
  if (padding_ >= 0) {
    const Tensor trained = ops::unsqueeze(ops::ne(ids, static_cast<double>(padding_)), 2);
    x = ops::where(trained, x, ops::detach(x));
  }
  if (types_) {
    x = ops::add(x, (*types_)(inputs[1] ? inputs[1] : ops::zeros_like(ids)));
  } else if (inputs[1]) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "this model's tokens have no types",
                .advice = "leave token_type_ids out"});
  }
  return {through(dropout_, through(norm_, through(positions_, std::move(x))))};
}

ImageInputs::ImageInputs(const EncoderShape& shape)
    : image_{shape.channels, shape.image_size, shape.image_size}, count_(shape.image_positions()) {
  const auto parameter = [&](std::int64_t rows) {
    return std::make_shared<nn::Parameter>(
        Dims{1, rows, shape.dim}, shape.dtype,
        nn::Initialization{nn::Initialization::Kind::normal, shape.standard_deviation});
  };
  add_parameter("class_token", parameter(1));
  add_parameter("positions", parameter(count_));
  patches_ = add_child<nn::Conv2d>(
      "patches", shape.channels, shape.dim, Dims{shape.patch_size, shape.patch_size},
      ops::Convolution{.stride = {shape.patch_size}}, true, shape.standard_deviation, shape.dtype);
  if (shape.input_dropout > 0) {
    dropout_ = add_child<nn::Dropout>("dropout", shape.input_dropout);
  }
}

std::string_view ImageInputs::kind() const { return "ImageInputs"; }
std::vector<std::string> ImageInputs::input_names() const { return {"pixel_values"}; }

Tensors ImageInputs::forward(const Tensors& inputs) {
  const Tensor& images = input(inputs, 0);  // (B, channels, size, size)
  const bool fits =
      images.dims() == 4 && Dims{images.size(1), images.size(2), images.size(3)} == image_;
  if (!fits) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "the images have not the size that the model is made for",
                .expected = fmt::format("[rows, {}, {}, {}]", image_[0], image_[1], image_[2]),
                .got = to_string(images.shape()),
                .advice = "resize them"});
  }
  const Tensor grid = (*patches_)(images);                          // (B, C, rows, columns)
  const Tensor x = ops::transpose(ops::flatten(grid, 2, 3), 1, 2);  // (B, patches, C)
  // The class token is added to an empty first place, as the positions are.
  const Tensor token = ops::pad(parameter("class_token")->use(), {0, 0, 0, count_ - 1});
  const Tensor added = ops::add(parameter("positions")->use(), token);  // (1, T, C)
  return {through(dropout_, ops::add(ops::pad(x, {0, 0, 1, 0}), added))};
}

EncoderBlock::EncoderBlock(const EncoderShape& shape, std::int64_t layer)
    : norm_after_(shape.norm_after), local_(shape.is_local(layer)) {
  const auto norm = [&](const char* name) {
    return attach(name, nn::make_norm(shape.dim, shape.norm(), shape.dtype));
  };
  attention_ = add_child<nn::Attention>("self_attn", shape.attention(layer));
  if (shape.gated) {
    mlp_ = add_child<nn::GatedMLP>("mlp", shape.feed_forward());
  } else {
    mlp_ = add_child<nn::PlainMLP>("mlp", shape.feed_forward());
  }
  if (shape.first_norm || layer > 0) {
    attention_norm_ = norm("attention_norm");
  }
  mlp_norm_ = norm("mlp_norm");
  if (shape.attention_dropout > 0) {
    attention_dropout_ = add_child<nn::Dropout>("attention_dropout", shape.attention_dropout);
  }
  if (shape.ffn_dropout > 0) {
    mlp_dropout_ = add_child<nn::Dropout>("mlp_dropout", shape.ffn_dropout);
  }
}

std::string_view EncoderBlock::kind() const { return "EncoderBlock"; }
std::vector<std::string> EncoderBlock::input_names() const {
  return {"hidden_states", "mask", "local_mask"};
}

Tensors EncoderBlock::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);  // (B, T, C)
  const Tensor& mask = inputs[local_ ? 2 : 1];
  const auto attended = [&](const Tensor& states) {
    return through(attention_dropout_, (*attention_)(Tensors{states, mask})[0]);
  };
  const auto computed = [&](const Tensor& states) {
    return through(mlp_dropout_, (*mlp_)(states));
  };
  if (norm_after_) {
    const Tensor middle = through(attention_norm_, ops::add(x, attended(x)));
    return {(*mlp_norm_)(ops::add(middle, computed(middle)))};
  }
  const Tensor middle = ops::add(x, attended(through(attention_norm_, x)));
  return {ops::add(middle, computed((*mlp_norm_)(middle)))};
}

Encoder::Encoder(const EncoderShape& shape)
    : images_(shape.takes_images()),
      reach_(shape.local_layers.empty() ? -1 : shape.window / 2),
      max_positions_(shape.max_positions) {
  if (images_) {
    embeddings_ = add_child<ImageInputs>("embeddings", shape);
  } else {
    embeddings_ = add_child<TokenInputs>("embeddings", shape);
  }
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(add_child<EncoderBlock>(fmt::format("layers.{}", i), shape, i));
  }
  if (shape.final_norm) {
    norm_ = attach("norm", nn::make_norm(shape.dim, shape.norm(), shape.dtype));
  }
  if (reach_ >= 0) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(max_positions_));
    std::iota(places.begin(), places.end(), 0);
    add_buffer("places",
               std::make_shared<nn::Buffer>(
                   from_values(std::span<const std::int64_t>(places), {max_positions_}), false));
  }
}

std::string_view Encoder::kind() const { return "Encoder"; }
std::vector<std::string> Encoder::input_names() const { return encoder_inputs(images_); }

std::vector<std::string> encoder_inputs(bool images) {
  return images ? std::vector<std::string>{"pixel_values"}
                : std::vector<std::string>{"input_ids", "attention_mask", "token_type_ids"};
}

Tensor shown_tokens(const Tensor& mask) {
  return mask.dtype() == DType::boolean ? mask : ops::ne(mask, 0.0);
}

Tensors Encoder::masks(const Tensors& inputs) const {
  if (images_) {
    return {};
  }
  const Tensor& ids = inputs[0];
  const std::int64_t tokens = ids.size(1);
  Tensor all;  // (B, 1, 1, T)
  if (inputs[1]) {
    all = ops::view(shown_tokens(inputs[1]), {ids.size(0), 1, 1, tokens});
  }
  Tensor near;  // (1, 1, T, T)
  if (reach_ >= 0) {
    const Tensor places = ops::narrow(buffer("places")->value, 0, 0, tokens);
    const Tensor apart = ops::abs(
        ops::sub(ops::view(places, {1, 1, tokens, 1}), ops::view(places, {1, 1, 1, tokens})));
    near = ops::le(apart, static_cast<double>(reach_));
  }
  return {all, all && near ? ops::logical_and(all, near) : near};
}

Tensors Encoder::forward(const Tensors& inputs) {
  const Tensor& first = input(inputs, 0);
  if (!images_ && (first.dims() != 2 || first.size(1) > max_positions_)) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "the rows of tokens do not fit",
                .expected = fmt::format("[rows, at most {} tokens]", max_positions_),
                .got = to_string(first.shape())});
  }
  Tensor hidden = (*embeddings_)(images_ ? Tensors{first} : Tensors{first, inputs[2]})[0];
  hidden = nn::run_blocks(blocks_, std::move(hidden), activation_checkpointing, masks(inputs));
  return {through(norm_, std::move(hidden))};
}

}  // namespace tessera::encoders
