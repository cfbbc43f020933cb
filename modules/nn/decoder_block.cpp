// The layers of a decoder. Shapes: B rows, T tokens, C features of the model, S streams, E features
// of a layer's embedding.
module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
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

/// The module's result; x itself where there is none.
Tensor through(const Child& module, Tensor x) { return module ? (*module)(x) : std::move(x); }

/// A Linear without a bias, whose weights are at most so far from 0 while it trains; 0: any.
class BoundedLinear : public Module {
 public:
  BoundedLinear(std::int64_t in, std::int64_t out, double most, const DecoderShape& shape)
      : most_(most) {
    add_parameter("weight", std::make_shared<Parameter>(Dims{out, in}, shape.dtype,
                                                        Initialization{Initialization::Kind::normal,
                                                                       shape.standard_deviation}));
  }
  std::string_view kind() const override { return "BoundedLinear"; }
  std::vector<std::string> input_names() const override { return {"input"}; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor& weight = parameter("weight")->use();
    const bool bounded = is_training() && most_ > 0;
    return {ops::linear(input(inputs, 0), bounded ? ops::clamp(weight, -most_, most_) : weight)};
  }

 private:
  double most_;
};

/// Streams [B, T, S, C] -> what a layer makes of them before it computes one; with what it has
/// computed [B, T, C] as a second input, the streams after it, and what its embedding is gated by
/// [B, T, C]. Names are those of transformers. Source: Baykal et al. (2023), as Gemma 3n has it.
class StreamUpdate : public Module {
 public:
  explicit StreamUpdate(const DecoderShape& shape)
      : active_(shape.streams.active),
        scaled_(shape.streams.scaled),
        router_scale_(1 / static_cast<double>(shape.dim)) {
    const std::int64_t count = shape.streams.count;
    const double most = shape.streams.most;
    add_parameter("correct_output_scale",
                  std::make_shared<Parameter>(Dims{shape.dim}, shape.dtype, Initialization{}));
    corrections_ = add_child<BoundedLinear>("correction_coefs", count, count, most, shape);
    predictions_ = add_child<BoundedLinear>("prediction_coefs", count, count * count, most, shape);
    router_ = add_child<Linear>("modality_router", shape.dim, count, false,
                                shape.standard_deviation, shape.dtype);
    norm_ = attach("router_norm", make_norm(shape.dim, shape.norm(), shape.dtype));
  }
  std::string_view kind() const override { return "StreamUpdate"; }
  std::vector<std::string> input_names() const override { return {"streams", "computed"}; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor& streams = input(inputs, 0);
    const Tensor one = ops::select(streams, 2, active_);
    if (!inputs[1]) {
      const std::int64_t count = streams.size(2);
      const Tensor coefficients = (*predictions_)(routed(one));  // (B, T, S S)
      const Tensor by_stream =
          ops::view(coefficients, {coefficients.size(0), coefficients.size(1), count, count});
      return {ops::add(streams, ops::matmul(by_stream, streams))};
    }
    const Tensor& computed = inputs[1];
    const Tensor shares = ops::add_scalar((*corrections_)(routed(computed)), 1);  // (B, T, S)
    const Tensor difference = ops::unsqueeze(ops::sub(computed, one), 2);         // (B, T, 1, C)
    const Tensor corrected = ops::add(streams, ops::mul(difference, ops::unsqueeze(shares, 3)));
    const Tensor now = ops::select(corrected, 2, active_);
    return {corrected, scaled_ ? ops::mul(now, parameter("correct_output_scale")->use()) : now};
  }

 private:
  Tensor routed(const Tensor& x) const {
    return ops::tanh((*router_)(ops::mul_scalar((*norm_)(x), router_scale_)));
  }

  std::int64_t active_;
  bool scaled_;
  double router_scale_;
  Child corrections_, predictions_, router_, norm_;
};

/// x + norm(right(left(x))): [B, T, C] -> the same. Source: Menghani et al., LAuReL (2024).
class LowRankSum : public Module {
 public:
  explicit LowRankSum(const DecoderShape& shape) {
    const auto projection = [&](const char* name, std::int64_t in, std::int64_t out) {
      return add_child<Linear>(name, in, out, false, shape.standard_deviation, shape.dtype);
    };
    left_ = projection("linear_left", shape.dim, shape.residual_rank);
    right_ = projection("linear_right", shape.residual_rank, shape.dim);
    norm_ = attach("post_laurel_norm", make_norm(shape.dim, shape.norm(), shape.dtype));
  }
  std::string_view kind() const override { return "LowRankSum"; }
  std::vector<std::string> input_names() const override { return {"hidden_states"}; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor& x = input(inputs, 0);
    return {ops::add(x, (*norm_)((*right_)((*left_)(x))))};
  }

 private:
  Child left_, right_, norm_;
};

}  // namespace

DecoderBlock::DecoderBlock(const DecoderShape& shape, std::int64_t layer)
    : parallel_(shape.parallel_block),
      residual_scale_(shape.residual_factor()),
      gives_keys_(shape.gives_keys(layer)),
      active_stream_(shape.streams.active),
      activation_(shape.activation) {
  if (shape.has_mixer(layer)) {
    add_mixer(shape, layer);
  }
  if (shape.has_feed_forward(layer)) {
    add_feed_forward(shape, layer);
  }
  add_norms(shape);
  add_further_parts(shape);
  if (shape.dropout > 0) {
    attention_dropout_ = add_child<Dropout>("attention_dropout", shape.dropout);
    mlp_dropout_ = add_child<Dropout>("mlp_dropout", shape.dropout);
  }
}

void DecoderBlock::add_mixer(const DecoderShape& shape, std::int64_t layer) {
  if (shape.layer_kind(layer) == LayerKind::recurrent) {
    const RecurrentOptions options = shape.recurrence();
    attention_ = options.rule == RecurrentRule::convolution
                     ? Child(add_child<GatedConvolution>("recurrent", options))
                     : Child(add_child<Recurrence>("recurrent", options));
  } else if (shape.latent_rank > 0) {
    attention_ = add_child<LatentAttention>("self_attn", shape.latent(layer));
  } else {
    attention_ = add_child<Attention>("self_attn", shape.attention(layer));
  }
}

void DecoderBlock::add_feed_forward(const DecoderShape& shape, std::int64_t layer) {
  if (shape.has_experts(layer)) {
    mlp_ = add_child<SparseMixture>("mlp", shape.mixture());
  } else if (shape.gated) {
    mlp_ = add_child<GatedMLP>("mlp", shape.feed_forward(layer));
  } else {
    mlp_ = add_child<PlainMLP>("mlp", shape.feed_forward(layer));
  }
}

void DecoderBlock::add_norms(const DecoderShape& shape) {
  const auto norm = [&](const char* name) {
    return attach(name, make_norm(shape.dim, shape.norm(), shape.dtype));
  };
  if (shape.norm_inputs) {
    attention_norm_ = norm("input_layernorm");
  }
  if (shape.one_part) {
    return;
  }
  if (shape.norm_results) {
    attended_norm_ = norm("post_attention_layernorm");
    if (shape.norm_inputs) {
      mlp_norm_ = norm("pre_feedforward_layernorm");
    }
    computed_norm_ = norm("post_feedforward_layernorm");
  } else if (shape.norm_inputs && (!parallel_ || shape.parallel_norms)) {
    mlp_norm_ = norm("post_attention_layernorm");
  }
}

void DecoderBlock::add_further_parts(const DecoderShape& shape) {
  if (shape.streams.count > 1) {
    streams_ = add_child<StreamUpdate>("altup", shape);
  }
  if (shape.residual_rank > 0) {
    residual_ = add_child<LowRankSum>("laurel", shape);
  }
  const std::int64_t features = shape.layer_embedding_dim;
  if (features > 0) {
    embedding_gate_ = add_child<Linear>("per_layer_input_gate", shape.dim, features, false,
                                        shape.standard_deviation, shape.dtype);
    embedding_projection_ = add_child<Linear>("per_layer_projection", features, shape.dim, false,
                                              shape.standard_deviation, shape.dtype);
    embedding_norm_ =
        attach("post_per_layer_input_norm", make_norm(shape.dim, shape.norm(), shape.dtype));
  }
  if (shape.layer_scale) {
    add_buffer("layer_scalar", std::make_shared<Buffer>(full({1}, 1, shape.dtype), true));
  }
}

std::string_view DecoderBlock::kind() const { return "DecoderBlock"; }
std::vector<std::string> DecoderBlock::input_names() const {
  return {"hidden_states", "documents", "positions", "embedding", "keys", "values"};
}

Tensors DecoderBlock::attended(const Tensors& inputs, const Tensor& x) {
  const Tensor& documents = inputs[1];
  if (inputs[4]) {  // as named for Attention
    return (*attention_)(
        Tensors{x, Tensor(), documents ? inputs[2] : Tensor(), documents, inputs[4], inputs[5]});
  }
  return documents ? attention_->by_name(
                         {{"hidden_states", x}, {"documents", documents}, {"positions", inputs[2]}})
                   : (*attention_)(Tensors{x});
}

Tensor DecoderBlock::of_embedding(const Tensor& x, const Tensor& embedding) const {
  const Tensor gate = activated(activation_, (*embedding_gate_)(x));  // (B, T, E)
  return (*embedding_norm_)((*embedding_projection_)(ops::mul(gate, embedding)));
}

Tensor DecoderBlock::finished(Tensor result, const Child& norm, const Child& dropout) const {
  result = through(dropout, through(norm, std::move(result)));
  return residual_scale_ == 1 ? result : ops::mul_scalar(result, residual_scale_);
}

Tensors DecoderBlock::computed(const Tensors& inputs, const Tensor& x) {
  // All are (B, T, C); documents and positions (B, T).
  const Tensor normed = through(attention_norm_, x);
  if (!attention_) {
    Tensors only = (*mlp_)(Tensors{normed});
    only[0] = ops::add(x, finished(only[0], {}, mlp_dropout_));
    return only;
  }
  Tensors attention = attended(inputs, normed);
  Tensor middle = ops::add(x, finished(attention[0], attended_norm_, attention_dropout_));
  if (residual_) {
    middle = ops::mul_scalar(ops::add(middle, (*residual_)(normed)), 1 / std::sqrt(2.0));
  }
  if (!mlp_) {
    return {middle};
  }
  const Tensor entering =
      parallel_ && !mlp_norm_ ? normed : through(mlp_norm_, parallel_ ? x : middle);
  Tensors mlp = (*mlp_)(Tensors{entering});
  mlp[0] = ops::add(middle, finished(mlp[0], computed_norm_, mlp_dropout_));
  if (gives_keys_) {
    mlp.push_back(attention[1]);
    mlp.push_back(attention[2]);
  }
  return mlp;
}

Tensors DecoderBlock::forward(const Tensors& inputs) {
  const Tensor& given = input(inputs, 0);
  Tensors out;
  if (!streams_) {
    out = computed(inputs, given);
    if (embedding_gate_) {
      out[0] = ops::add(out[0], of_embedding(out[0], input(inputs, 3)));
    }
  } else {
    const Tensors predicted = (*streams_)(Tensors{given});
    out = computed(inputs, ops::select(predicted[0], 2, active_stream_));
    const Tensors corrected = (*streams_)(Tensors{predicted[0], out[0]});
    out[0] = corrected[0];
    if (embedding_gate_) {
      // All streams but the first one get it, whichever is computed.
      const Tensor added = ops::unsqueeze(of_embedding(corrected[1], input(inputs, 3)), 2);
      const std::int64_t others = given.size(2) - 1;
      out[0] = ops::cat(Tensors{ops::narrow(corrected[0], 2, 0, 1),
                                ops::add(ops::narrow(corrected[0], 2, 1, others), added)},
                        2);
    }
  }
  if (!buffers().empty()) {
    out[0] = ops::mul(out[0], buffer("layer_scalar")->value);
  }
  return out;
}

FurtherBlock::FurtherBlock(const DecoderShape& shape, std::int64_t layer)
    : DecoderBlock(shape, layer) {
  const auto norm = [&](const char* name) {
    return attach(name, make_norm(shape.dim, shape.norm(), shape.dtype));
  };
  embedded_norm_ = norm("enorm");
  hidden_norm_ = norm("hnorm");
  projection_ = add_child<Linear>("eh_proj", 2 * shape.dim, shape.dim, false,
                                  shape.standard_deviation, shape.dtype);
  head_norm_ = norm("shared_head.norm");
}

std::string_view FurtherBlock::kind() const { return "FurtherBlock"; }
std::vector<std::string> FurtherBlock::input_names() const {
  return {"hidden_states", "embedded", "documents", "positions"};
}

Tensors FurtherBlock::forward(const Tensors& inputs) {
  const Tensor both =
      ops::cat(Tensors{(*embedded_norm_)(input(inputs, 1)), (*hidden_norm_)(input(inputs, 0))}, 2);
  const Tensors out = DecoderBlock::forward(
      Tensors{(*projection_)(both), inputs[2], inputs[3], Tensor(), Tensor(), Tensor()});
  Tensors all{out[0], (*head_norm_)(out[0])};
  if (out.size() > 1) {
    all.push_back(out[1]);
  }
  return all;
}

}  // namespace tessera::nn
