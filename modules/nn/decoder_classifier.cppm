export module tessera.nn:decoder_classifier;

import tessera.base;
import tessera.tensor;
import :tree;
import :decoder;

export namespace tessera::nn {

/// A decoder that tells the class of a row: tokens [B, T] (i64) -> logits [B, classes], what a
/// projection without bias makes of the hidden state of the row's last token that is not `padding`
/// (of none but padding: of its first). Tokens behind it change nothing, as attention is causal.
/// Built on the meta device. Children model (Decoder) and score, as transformers' classes
/// XForSequenceClassification have them.
class DecoderClassifier : public Module {
 public:
  /// Errors (input): those of DecoderShape::check; fewer than one class.
  DecoderClassifier(const DecoderShape& shape, std::int64_t classes, std::int64_t padding);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// Each block recomputes its activations in backward instead of saving them.
  void set_activation_checkpointing(bool enabled);

 private:
  std::int64_t dim_;
  std::int64_t padding_;
  std::shared_ptr<Decoder> model_;
  Child score_;
};

}  // namespace tessera::nn
