// Shapes: B rows, T tokens, C features.
module;
#include <fmt/format.h>

#include <memory>
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
import :encoder_model;

namespace tessera::encoders {
Tensor pooled(const Tensor& hidden, const Tensor& mask, Pooling pooling) {
  if (pooling == Pooling::first) {
    return ops::select(hidden, 1, 0);
  }
  if (!mask) {
    return ops::mean(hidden, {1});
  }
  const Tensor counted = ops::unsqueeze(ops::cast(shown_tokens(mask), hidden.dtype()), 2);
  return ops::div(ops::sum(ops::mul(hidden, counted), {1}), ops::sum(counted, {1}));
}

TransformHead::TransformHead(const EncoderShape& shape) {
  dense_ = add_child<nn::Linear>("dense", shape.dim, shape.dim, shape.transform_bias,
                                 shape.standard_deviation, shape.dtype);
  activation_ =
      add_child<nn::Gelu>("activation", shape.transform_activation == nn::Activation::gelu_tanh);
  norm_ = attach("norm", nn::make_norm(shape.dim, shape.norm(), shape.dtype));
}

std::string_view TransformHead::kind() const { return "TransformHead"; }
std::vector<std::string> TransformHead::input_names() const { return {"hidden_states"}; }

Tensors TransformHead::forward(const Tensors& inputs) {
  return {(*norm_)((*activation_)((*dense_)(input(inputs, 0))))};
}

EncoderModel::EncoderModel(const EncoderShape& shape) : shape_(shape) {
  shape.check();
  const auto linear = [&](const char* name, std::int64_t out, bool bias) {
    return add_child<nn::Linear>(name, shape.dim, out, bias, shape.standard_deviation, shape.dtype);
  };
  model_ = add_child<Encoder>("model", shape);
  if (shape.pooler) {
    pooler_ = linear("pooler", shape.dim, true);
  }
  if (shape.transform && shape.head != EncoderHead::none) {
    head_ = add_child<TransformHead>("head", shape);
  }
  if (shape.head == EncoderHead::masked_tokens) {
    const nn::AddedChild<nn::Linear> last = linear("lm_head", shape.vocab, shape.token_bias);
    if (shape.tie_embeddings) {
      for (const auto& [name, child] : model_->embeddings().children()) {
        if (name == "tokens") {
          last->set_parameter("weight", child->parameter("weight"));
        }
      }
    }
    last_ = last;
  }
  if (shape.head == EncoderHead::classes || shape.head == EncoderHead::token_classes) {
    if (shape.head_dropout > 0) {
      dropout_ = add_child<nn::Dropout>("dropout", shape.head_dropout);
    }
    last_ = linear("classifier", shape.classes, true);
  }
  loss_ = add_child<nn::CrossEntropyLoss>("loss");
  set_names();
}

std::string_view EncoderModel::kind() const { return "EncoderModel"; }
std::vector<std::string> EncoderModel::input_names() const {
  return encoder_inputs(shape_.takes_images());
}

Tensor EncoderModel::first_pooled(const Tensor& hidden) const {
  return ops::tanh((*pooler_)(pooled(hidden, {}, Pooling::first)));
}

Tensor EncoderModel::class_logits(const Tensor& hidden, const Tensors& inputs) const {
  const Tensor mask = shape_.takes_images() ? Tensor() : inputs[1];
  return told(pooler_ ? first_pooled(hidden) : pooled(hidden, mask, shape_.pooling));  // (B, C)
}

Tensor EncoderModel::told(Tensor states) const {
  if (head_) {
    states = (*head_)(states);
  }
  if (dropout_) {
    states = (*dropout_)(states);
  }
  return (*last_)(states);
}

Tensors EncoderModel::forward(const Tensors& inputs) {
  const Tensor hidden = (*model_)(inputs)[0];  // (B, T, C)
  switch (shape_.head) {
    case EncoderHead::none:
      return pooler_ ? Tensors{hidden, first_pooled(hidden)} : Tensors{hidden};
    case EncoderHead::masked_tokens:
      return {(*last_)(head_ ? (*head_)(hidden) : hidden)};
    case EncoderHead::classes:
      return {class_logits(hidden, inputs)};
    case EncoderHead::token_classes:
      return {told(hidden)};
  }
  fail("encoder: no such head");
}

Tensor EncoderModel::hidden_states(const Tensors& inputs) {
  return call(inputs, [this](const Tensors& given) { return (*model_)(given); })[0];
}

Tensor EncoderModel::embeddings(const Tensors& inputs, Pooling pooling) {
  const Tensors out = call(inputs, [&](const Tensors& given) -> Tensors {
    const Tensor mask = shape_.takes_images() ? Tensor() : given[1];
    return {ops::cast(pooled((*model_)(given)[0], mask, pooling), DType::f32)};
  });
  return out[0];
}

Tensor EncoderModel::loss_sum(const Tensors& inputs, const Tensor& labels) {
  if (shape_.head == EncoderHead::none) {
    fail_input({.thing = "encoder",
                .wrong = "a model without a head has no loss",
                .advice = "give it one for classes or tokens"});
  }
  return (*loss_)(Tensors{(*this)(inputs)[0], labels})[0];
}

void EncoderModel::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
  note_change();
}

std::vector<nn::ParameterPointer> EncoderModel::head_parameters() {
  std::vector<nn::ParameterPointer> all;
  for (const auto& [name, parameter] : nn::named_parameters(*this)) {
    if (name.starts_with("head.") || name.starts_with("classifier.")) {
      all.push_back(parameter);
    }
  }
  return all;
}

}  // namespace tessera::encoders
