module tessera.hub:gguf_tensor_forms;

import tessera.base;
import tessera.tensor;
import tessera.models;

// Forms that files have parameters in: to each the way there and the way back.

namespace tessera::hub {

/// Those of recurrent layers.
struct RecurrentHeads {
  std::int64_t keys = 1;
  std::int64_t values = 1;
};

class TensorForm {
 public:
  TensorForm(models::GgufTensorForm form, RecurrentHeads heads) : form_(form), heads_(heads) {}

  /// What becomes of such a shape; empty: a tensor of this shape has no such form.
  Dims shape(const Dims& from, bool to_model) const;
  // Of a tensor with such a shape; each undoes the other.
  Tensor to_file(const Tensor& parameter) const;
  Tensor to_model(const Tensor& stored) const;

 private:
  Tensor in_turns(const Tensor& tensor, std::int64_t outer) const;
  bool of_columns() const { return form_ == models::GgufTensorForm::columns_in_turns; }

  models::GgufTensorForm form_;
  RecurrentHeads heads_;
};

}  // namespace tessera::hub
