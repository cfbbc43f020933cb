module;
#include <fmt/format.h>

#include <cstdint>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.models;
import :gguf_tensor_forms;

namespace tessera::hub {

using Form = models::GgufTensorForm;

Dims TensorForm::shape(const Dims& from, bool to_model) const {
  const int dims = static_cast<int>(from.size());
  switch (form_) {
    case Form::negative_exp:
      return from;
    case Form::column:
      if (to_model) {
        return dims == 2 && from[1] == 1 ? Dims{from[0]} : Dims{};
      }
      return dims == 1 ? Dims{from[0], 1} : Dims{};
    case Form::without_middle:
      if (to_model) {
        return dims == 2 ? Dims{from[0], 1, from[1]} : Dims{};
      }
      return dims == 3 && from[1] == 1 ? Dims{from[0], from[2]} : Dims{};
    case Form::by_key_heads:
      if (to_model) {
        return dims == 2 && from[0] == heads_.keys ? Dims{from[0] * from[1]} : Dims{};
      }
      return dims == 1 && from[0] % heads_.keys == 0 ? Dims{heads_.keys, from[0] / heads_.keys}
                                                     : Dims{};
    case Form::heads_in_turns:
    case Form::columns_in_turns:
      break;
  }
  const int dim = of_columns() ? 1 : 0;
  const bool fits =
      dim < dims && heads_.values % heads_.keys == 0 && from[dim] % heads_.values == 0;
  return fits ? from : Dims{};
}

/// Groups of heads of equal number; `outer`: how many there are.
Tensor TensorForm::in_turns(const Tensor& tensor, std::int64_t outer) const {
  const int dim = of_columns() ? 1 : 0;
  Dims divided;
  for (int d = 0; d < tensor.dims(); ++d) {
    if (d == dim) {
      divided.push_back(outer);
      divided.push_back(heads_.values / outer);
      divided.push_back(tensor.size(d) / heads_.values);
    } else {
      divided.push_back(tensor.size(d));
    }
  }
  return ops::reshape(ops::transpose(ops::reshape(tensor, divided), dim, dim + 1), tensor.shape());
}

Tensor TensorForm::to_file(const Tensor& parameter) const {
  switch (form_) {
    case Form::negative_exp:
      return ops::neg(ops::exp(parameter));
    case Form::heads_in_turns:
    case Form::columns_in_turns:
      return in_turns(parameter, heads_.keys);
    case Form::column:
    case Form::without_middle:
    case Form::by_key_heads:
      break;
  }
  return ops::reshape(parameter, shape(parameter.shape(), false));
}

Tensor TensorForm::to_model(const Tensor& stored) const {
  switch (form_) {
    case Form::negative_exp:
      for (const double value : to_doubles(stored)) {
        if (!(value < 0)) {
          fail_input({.thing = "a GGUF file",
                      .wrong = "a decay of recurrent layers is -exp of a parameter",
                      .expected = "a number below 0",
                      .got = fmt::format("{}", value)});
        }
      }
      return ops::log(ops::neg(stored));
    case Form::heads_in_turns:
    case Form::columns_in_turns:
      return in_turns(stored, heads_.values / heads_.keys);
    case Form::column:
    case Form::without_middle:
    case Form::by_key_heads:
      break;
  }
  return ops::reshape(stored, shape(stored.shape(), true));
}

}  // namespace tessera::hub
