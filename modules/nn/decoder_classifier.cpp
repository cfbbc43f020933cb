// Shapes: B rows, T tokens, C features.
module;
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

DecoderClassifier::DecoderClassifier(const DecoderShape& shape, std::int64_t classes,
                                     std::int64_t padding)
    : dim_(shape.dim), padding_(padding) {
  shape.check();
  if (classes < 1) {
    fail_input({.thing = "decoder",
                .wrong = "a classifier needs classes",
                .expected = "at least 1",
                .got = fmt::format("{}", classes)});
  }
  model_ = add_child<Decoder>("model", shape);
  score_ =
      add_child<Linear>("score", shape.dim, classes, false, shape.standard_deviation, shape.dtype);
  set_names();
}

std::string_view DecoderClassifier::kind() const { return "DecoderClassifier"; }
std::vector<std::string> DecoderClassifier::input_names() const { return {"input_ids"}; }

Tensors DecoderClassifier::forward(const Tensors& inputs) {
  const Tensor& tokens = input(inputs, 0);              // (B, T)
  const Tensor hidden = (*model_)(Tensors{tokens})[0];  // (B, T, C)
  // The last place that is not padding: of the numbers of such places, the largest.
  const Tensor shown = ops::cast(ops::ne(tokens, static_cast<double>(padding_)), DType::i64);
  const Tensor places = ops::sub(ops::cumsum(ops::ones_like(tokens), 1), ops::ones_like(tokens));
  const Tensor last = ops::argmax(ops::mul(places, shown), 1);  // (B)
  const std::int64_t rows = tokens.size(0);
  const Tensor index = ops::expand(ops::view(last, {rows, 1, 1}), {rows, 1, dim_});
  return {(*score_)(ops::squeeze(ops::gather(hidden, index, 1), 1))};
}

void DecoderClassifier::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
  note_change();
}

}  // namespace tessera::nn
