export module tessera.encoders:encoder_model;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import :encoder;

export namespace tessera::encoders {

/// norm(gelu(dense(x))): what tells tokens or classes, before the last projection.
class TransformHead : public nn::Module {
 public:
  explicit TransformHead(const EncoderShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  nn::Child dense_, activation_, norm_;
};

/// An encoder with its head. Inputs: those of Encoder. Outputs: hidden states [B, T, dim], and
/// what the pooler makes of them [B, dim] if there is one; logits of tokens [B, T, vocab]; or
/// logits of classes [B, classes], or of those of tokens [B, T, classes]. Built on the meta device.
/// Children model (Encoder), pooler, head, dropout, lm_head or classifier, and "loss" beside the
/// model.
class EncoderModel : public nn::Module {
 public:
  /// Errors (input): those of EncoderShape::check.
  explicit EncoderModel(const EncoderShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  const EncoderShape& shape() const { return shape_; }
  /// Hidden states [B, T, dim], whatever the head is.
  Tensor hidden_states(const Tensors& inputs);
  /// One vector for each row [B, dim], f32, of the hidden states.
  Tensor embeddings(const Tensors& inputs, Pooling pooling);
  /// Labels: of rows [B], or of tokens [B, T] (i64; -100: not told) -> the SUM of the losses.
  /// Error (input): a model without logits.
  Tensor loss_sum(const Tensors& inputs, const Tensor& labels);
  /// Each block recomputes its activations in backward instead of saving them.
  void set_activation_checkpointing(bool enabled);
  /// The parameters of the head, which a model for other classes does not take over.
  std::vector<nn::ParameterPointer> head_parameters();

 private:
  Tensor class_logits(const Tensor& hidden, const Tensors& inputs) const;
  Tensor first_pooled(const Tensor& hidden) const;
  /// What head, dropout and classifier make of states.
  Tensor told(Tensor states) const;

  EncoderShape shape_;
  std::shared_ptr<Encoder> model_;
  nn::Child pooler_, head_, dropout_, last_;
  std::shared_ptr<nn::CrossEntropyLoss> loss_;
};

/// Hidden states [B, T, C] -> one vector for each row [B, C]. `mask`: of the tokens, as that of
/// Encoder; it may be undefined.
Tensor pooled(const Tensor& hidden, const Tensor& mask, Pooling pooling);

}  // namespace tessera::encoders
