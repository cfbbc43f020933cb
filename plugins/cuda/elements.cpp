// Functions of elements. The operators say their function's name (Op::element), which is the
// kernel's; kernels/elements.cu lists them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tessera/half.hpp>
#include <utility>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"

namespace tessera::cuda {
namespace {

/// "tessera::functions::GradientOf<tessera::functions::Silu>" -> "GradientOf_Silu". How the CPU
/// goes through the elements (LanesOf, TruthOf) is not part of the name.
std::string kernel_name(std::string_view function) {
  std::string name(function);
  const auto remove = [&name](std::string_view part) {
    for (auto at = name.find(part); at != std::string::npos; at = name.find(part)) {
      name.erase(at, part.size());
    }
  };
  remove("tessera::functions::");
  remove("LanesOf<");
  remove("TruthOf<");
  std::erase_if(name, [](char c) { return c == '>' || c == ' '; });
  std::ranges::replace(name, '<', '_');
  return name;
}

bool is_narrow(DType type) { return type == DType::bf16 || type == DType::f16; }

/// A mask comes before or between what is computed with.
DType type_of(std::span<const Tensor> operands) {
  for (const Tensor& x : operands) {
    if (x.dtype() != DType::boolean) {
      return is_narrow(x.dtype()) ? DType::f32 : x.dtype();
    }
  }
  return DType::boolean;
}

void apply(std::string_view function, std::span<const Tensor> operands,
           std::span<const double> numbers, const Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  ElementArguments arguments = elements_of(y.shape(), operands, y);
  std::ranges::copy(numbers, arguments.numbers);
  arguments.computed = type_of(operands);
  const std::string kernel = fmt::format("{}_{}_{}_{}", function, operands.size(), numbers.size(),
                                         arguments.computed == DType::f32 ? "f32" : "others");
  launch(y, kernel, blocks_of(arguments), threads_per_block, arguments);
}

std::vector<double> numbers_of(const Attributes& attributes) {
  std::vector<double> numbers;
  for (const std::int64_t word : attributes.dynamic()) {
    numbers.push_back(ArgumentType<double>::from_word(word));
  }
  return numbers;
}

/// Operands of a call of `op` begin with number `first`.
void compute(const Op& op, const Call& call, std::size_t first, const Tensor& y) {
  const Call inner{op, call.in.subspan(first), call.attributes, {}};
  apply(kernel_name(op.element(inner).function), inner.in, numbers_of(call.attributes), y);
}

void of_operator(const Call& call, std::span<Tensor> out) { compute(call.op, call, 0, out[0]); }

/// "mul_(a, b)".
void in_place(const Call& call, std::span<Tensor> out) {
  check_in_place(call);
  compute(*call.op.form_of, call, 0, out[0]);
}

/// "mul_out(out, a, b)".
void into_first(const Call& call, std::span<Tensor> out) {
  check_in_place(call);
  compute(*call.op.form_of, call, 1, out[0]);
}

// ---- operators that do not say their function in each call ----

const Op& base_of(const Op& op) { return op.form_of == nullptr ? op : *op.form_of; }
/// Whether the first operand is only written.
bool has_out(const Op& op) {
  return op.form_of != nullptr && op.operands.size() > op.form_of->operands.size();
}

/// Operators by the name of their kernel's function.
struct NamedKernel {
  std::string_view name;
  std::string_view function;
  Kernel kernel;
};
void of_named(const Call& call, std::span<Tensor> out);
void compared_with_number(const Call& call, std::span<Tensor> out);
constexpr NamedKernel named[] = {
    {"bitwise_and", "BitwiseAnd", of_named},
    {"bitwise_or", "BitwiseOr", of_named},
    {"bitwise_xor", "BitwiseXor", of_named},
    {"pow_scalar", "Pow", of_named},
    {"eq_scalar", "Equal", compared_with_number},
    {"ne_scalar", "NotEqual", compared_with_number},
    {"lt_scalar", "Less", compared_with_number},
    {"le_scalar", "LessEqual", compared_with_number},
    {"gt_scalar", "Greater", compared_with_number},
    {"ge_scalar", "GreaterEqual", compared_with_number},
};

std::string_view function_of(const Op& op) {
  const auto* found = std::ranges::find(named, base_of(op).name, &NamedKernel::name);
  require(found != std::end(named), "cuda: the operator is not in the list of named functions");
  return found->function;
}

/// A number as the operand's type holds it.
double rounded(DType type, double value) {
  return type == DType::bf16  ? static_cast<double>(kernels::BFloat16(value))
         : type == DType::f16 ? static_cast<double>(kernels::Half(value))
                              : value;
}

void of_named(const Call& call, std::span<Tensor> out) {
  if (call.op.in_place) {
    check_in_place(call);
  }
  apply(function_of(call.op), call.in.subspan(has_out(call.op) ? 1 : 0),
        numbers_of(call.attributes), out[0]);
}

/// A comparison with a number, which is rounded first.
void compared_with_number(const Call& call, std::span<Tensor> out) {
  const double number = rounded(call.in[0].dtype(), numbers_of(call.attributes)[0]);
  apply(function_of(call.op), call.in, {&number, 1}, out[0]);
}

/// All bits changed.
void bitwise_not(const Call& call, std::span<Tensor> out) {
  if (call.op.in_place) {
    check_in_place(call);
  }
  const DType type = out[0].dtype();
  const double ones = all_bits(type);
  apply("BitwiseXor", call.in.subspan(has_out(call.op) ? 1 : 0), {&ones, 1}, out[0]);
}

/// Operators over lists by the function of one tensor of each.
struct OverLists {
  std::string_view name;
  std::string_view function;
};
constexpr OverLists over_lists[] = {{"foreach_mul_", "Mul"},
                                    {"foreach_add_", "AddScaled"},
                                    {"foreach_lerp_", "Lerp"},
                                    {"foreach_addcmul_", "Addcmul"},
                                    {"foreach_addcdiv_", "Addcdiv"}};

/// Lists of one length, one after the other: each tensor of the first is written from those at its
/// place.
void of_lists(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  const auto* found = std::ranges::find(over_lists, call.op.name, &OverLists::name);
  require(found != std::end(over_lists), "cuda: the operator is not in the list of lists");
  const std::vector<double> numbers = numbers_of(call.attributes);
  const std::size_t lists = call.op.operands.size();
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Tensor> operands;
    for (std::size_t list = 0; list < lists; ++list) {
      operands.push_back(call.in[list * count + i]);
    }
    apply(found->function, operands, numbers, operands[0]);
    if (i > 0) {
      operands[0].storage().bump_version();  // the dispatcher moves operand 0's
    }
  }
}

void swiglu(const Call& call, std::span<Tensor> out) { apply("Swiglu", call.in, {}, out[0]); }

}  // namespace

void add_functions(KernelTable& table) {
  const auto with_forms = [&](const std::string& name, Kernel kernel) {
    for (const char* form : {"", "_", "_out"}) {
      table[name + form] = {kernel};
    }
  };
  for (const NamedKernel& entry : named) {
    with_forms(std::string(entry.name), entry.kernel);
  }
  for (const OverLists& entry : over_lists) {
    table[std::string(entry.name)] = {of_lists};
  }
  with_forms("bitwise_not", bitwise_not);
  table["swiglu"] = {swiglu};
}

Kernel kernel_of_elements(const Op& op) {
  if (op.form_of == nullptr) {
    return op.element == nullptr ? nullptr : of_operator;
  }
  if (op.form_of->element == nullptr) {
    return nullptr;
  }
  return has_out(op) ? into_first : in_place;
}

void check_in_place(const Call& call) {
  ResultShapes shapes;
  call.op.infer(call, shapes);
}

namespace {

/// The strides of x in a larger shape: 0 in dims that repeat it.
std::array<std::int64_t, most_dims> broadcast_strides(const Tensor& x, const Dims& shape) {
  std::array<std::int64_t, most_dims> strides{};
  const int more = shape.size() - x.shape().size();
  for (int dim = more; dim < shape.size(); ++dim) {
    strides[static_cast<std::size_t>(dim)] =
        x.shape()[dim - more] == 1 && shape[dim] != 1 ? 0 : x.strides()[dim - more];
  }
  return strides;
}

/// Whether eight elements in a row, from each multiple of 8 on, are a piece of an array's memory at
/// a multiple of its size, or one element.
bool is_in_pieces(const ElementArguments& a, const StridedArray& x) {
  const int last = a.dims - 1;
  const bool known = x.type == DType::f32 || x.type == DType::bf16 || x.type == DType::boolean;
  if (!known || a.dims == 0 || (a.dims > 1 && a.extents[last] % elements_of_pieces != 0)) {
    return false;
  }
  if (x.strides[last] == 0) {
    return &x != &a.result;
  }
  bool fits = x.strides[last] == 1 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
  for (int dim = 0; dim < last; ++dim) {
    fits = fits && x.strides[dim] % elements_of_pieces == 0;
  }
  return fits;
}

}  // namespace

unsigned blocks_of(const ElementArguments& a) {
  return a.in_pieces ? blocks_for(a.count, pieces_per_thread * elements_of_pieces)
                     : blocks_for(a.count);
}

PartPlaces places_of(const Dims& part, const SpecArgument& whole) {
  const Dims shape = whole ? whole->shape : part;
  const Dims offset = whole ? local_offset(*whole) : Dims::filled(shape.size(), 0);
  const Dims strides = contiguous_strides(shape);
  PartPlaces all = {};
  for (int d = 0; d < shape.size(); ++d) {
    all.first += offset[d] * strides[d];
    const bool joins = all.dims > 0 && all.strides[all.dims - 1] == part[d] * strides[d];
    const int at = joins ? all.dims - 1 : all.dims++;
    all.extents[at] = joins ? all.extents[at] * part[d] : part[d];
    all.strides[at] = strides[d];
  }
  if (all.dims == 0) {
    all.dims = 1;
    all.extents[0] = 1;
    all.strides[0] = 1;
  }
  return all;
}

ElementArguments elements_of(const Dims& shape, std::span<const Tensor> operands,
                             const Tensor& result) {
  ElementArguments a = {};
  a.count = result.numel();
  std::vector<StridedArray*> arrays;
  std::vector<std::array<std::int64_t, most_dims>> strides;
  const auto add = [&](const Tensor& x, StridedArray& array) {
    array.data = x.device_address();
    array.type = x.dtype();
    arrays.push_back(&array);
    strides.push_back(broadcast_strides(x, shape));
  };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    add(operands[i], a.operands[i]);
  }
  add(result, a.result);
  for (int dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 1) {
      continue;
    }
    bool joins = a.dims > 0;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      joins = joins && arrays[i]->strides[a.dims - 1] ==
                           strides[i][static_cast<std::size_t>(dim)] * shape[dim];
    }
    const int at = joins ? a.dims - 1 : a.dims++;
    a.extents[at] = joins ? a.extents[at] * shape[dim] : shape[dim];
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      arrays[i]->strides[at] = strides[i][static_cast<std::size_t>(dim)];
    }
  }
  for (StridedArray* array : arrays) {
    array->contiguous = a.dims == 0 || (a.dims == 1 && array->strides[0] == 1);
  }
  a.in_pieces = std::ranges::all_of(
      arrays, [&](const StridedArray* array) { return is_in_pieces(a, *array); });
  return a;
}

}  // namespace tessera::cuda
