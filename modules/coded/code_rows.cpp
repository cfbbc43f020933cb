module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <tessera/block_codes.hpp>
#include <vector>

#include "kernels/coded_product.hpp"
#include "kernels/integer_product.hpp"
#include "shared/kernels/parallel.hpp"
module tessera.coded;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::coded {
namespace {

/// ggml's number of a type that has blocks or plain elements; CodeType::int8 has none.
const GgufStoredType& stored_type(CodeType type) {
  constexpr std::uint32_t numbers[] = {1, 30, 0, 2, 3, 6, 8, 12, 13, 14, 39};
  return *gguf_type(numbers[static_cast<std::size_t>(type)]);
}

/// Calls f(codes) with null pointer to the structure that a kernel has for the type.
template <class F>
void with_codes(CodeType type, F&& f) {
  switch (type) {
    case CodeType::f16:
      return f(static_cast<kernels::HalfCodes*>(nullptr));
    case CodeType::bf16:
      return f(static_cast<kernels::BFloat16Codes*>(nullptr));
    case CodeType::int8:
      return f(static_cast<kernels::Int8Codes*>(nullptr));
    case CodeType::q4_0:
      return f(static_cast<kernels::Q4_0Codes*>(nullptr));
    case CodeType::q4_1:
      return f(static_cast<kernels::Q4_1Codes*>(nullptr));
    case CodeType::q5_0:
      return f(static_cast<kernels::Q5_0Codes*>(nullptr));
    case CodeType::q8_0:
      return f(static_cast<kernels::Q8_0Codes*>(nullptr));
    case CodeType::q4_k:
      return f(static_cast<kernels::Q4KCodes*>(nullptr));
    case CodeType::q5_k:
      return f(static_cast<kernels::Q5KCodes*>(nullptr));
    case CodeType::q6_k:
      return f(static_cast<kernels::Q6KCodes*>(nullptr));
    case CodeType::mxfp4:
      return f(static_cast<kernels::Mxfp4Codes*>(nullptr));
  }
}

/// Codes with how many elements a row has.
struct CheckedRows {
  explicit CheckedRows(const CodeRows& given)
      : type(given.type),
        codes(ops::contiguous(given.codes)),
        scales(given.scales ? ops::contiguous(given.scales) : Tensor()) {
    const Dims& shape = codes.shape();
    const std::int64_t block = block_of(type);
    const std::int64_t bytes = bytes_of(type, block);
    const bool has_scales = type == CodeType::int8;
    if (codes.dtype() != DType::u8 || shape.size() != 2 || shape[1] % bytes != 0 ||
        scales.defined() != has_scales ||
        (has_scales && !(scales.dtype() == DType::f32 && scales.shape() == Dims{shape[0]}))) {
      fail({.thing = "coded weight",
            .wrong = "the operands do not fit",
            .expected = fmt::format("codes u8 [rows, a multiple of {}]{}", bytes,
                                    has_scales ? " and scales f32 [rows]" : ""),
            .got = fmt::format("{} {}", name_of(codes.dtype()), to_string(shape))});
    }
    columns = shape[1] / bytes * block;
  }

  std::int64_t rows() const { return codes.shape()[0]; }
  const std::byte* row(std::int64_t number) const {
    return static_cast<const std::byte*>(codes.raw_data()) + number * codes.shape()[1];
  }
  const float* scale() const { return scales ? scales.data<float>() : nullptr; }

  CodeType type;
  Tensor codes;
  Tensor scales;
  std::int64_t columns = 0;
};

void decode_into(const CheckedRows& from, std::int64_t row, float* to) {
  with_codes(from.type, [&]<class Codes>(Codes*) {
    kernels::decode_row<Codes>(from.row(row), from.scales ? from.scale()[row] : 0, from.columns,
                               to);
  });
}

constexpr std::int64_t grain = 16;  // rows of a thread

void encode_int8(const float* from, float scale, std::int64_t columns, std::byte* to) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (std::int64_t i = 0; i < columns; ++i) {
    const float code = std::nearbyint(from[i] * inverse);
    // Not finite: the inverse of a subnormal scale.
    to[i] = static_cast<std::byte>(static_cast<std::int8_t>(std::isfinite(code) ? code : 0));
  }
}

}  // namespace

Tensor scales_of_rows(const Tensor& values) {
  const Tensor largest = ops::max(ops::abs(values), 1).values;
  return ops::mul_scalar(largest, 1.0 / 127);
}

CodeRows encoded(CodeType type, const Tensor& values, const Tensor& scales) {
  const Tensor from = ops::contiguous(values);
  const std::int64_t rows = from.size(0);
  const std::int64_t columns = from.size(1);
  const std::int64_t bytes = bytes_of(type, columns);
  CodeRows result{.type = type, .codes = empty({rows, bytes}, DType::u8), .scales = scales};
  auto* const to = static_cast<std::byte*>(result.codes.raw_data());
  if (type == CodeType::f16 || type == CodeType::bf16) {
    const Tensor narrow = ops::cast(from, stored_type(type).dtype);
    std::memcpy(to, narrow.raw_data(), static_cast<std::size_t>(rows * bytes));
    return result;
  }
  if (type != CodeType::int8 && stored_type(type).encode == nullptr) {
    fail({.thing = "coded weight",
          .wrong = fmt::format("nothing is written as {}", stored_type(type).name),
          .advice = "take the codes as they are stored"});
  }
  const float* const first = from.data<float>();
  kernels::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* const own = first + row * columns;
      if (type == CodeType::int8) {
        encode_int8(own, scales.data<float>()[row], columns, to + row * bytes);
        continue;
      }
      const GgufStoredType& stored = stored_type(type);
      for (std::int64_t block = 0; block < columns / stored.elements; ++block) {
        if (!stored.encode(own + block * stored.elements,
                           to + row * bytes + block * stored.bytes)) {
          fail_input({.wrong = fmt::format("a weight's values are too large for {}", stored.name),
                      .advice = "choose another precision"});
        }
      }
    }
  });
  return result;
}

Tensor decoded(const CodeRows& rows) {
  const CheckedRows from(rows);
  const Tensor values = empty({from.rows(), from.columns}, DType::f32);
  kernels::parallel_for(0, from.rows(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      decode_into(from, row, values.data<float>() + row * from.columns);
    }
  });
  return values;
}

Tensor decoded_rows(const CodeRows& rows, const Tensor& numbers) {
  const CheckedRows from(rows);
  const Tensor wanted = ops::contiguous(numbers);
  Dims shape = wanted.shape();
  shape.push_back(from.columns);
  const Tensor values = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < wanted.numel(); ++i) {
    const std::int64_t row = wanted.data<std::int64_t>()[i];
    float* const to = values.data<float>() + i * from.columns;
    if (row == -1) {
      std::fill_n(to, from.columns, 0.0F);
      continue;
    }
    if (row < 0 || row >= from.rows()) {
      fail_input({.thing = "coded weight",
                  .wrong = "there is no such row",
                  .expected = fmt::format("0 to {}", from.rows() - 1),
                  .got = fmt::format("{}", row)});
    }
    decode_into(from, row, to);
  }
  return values;
}

namespace {

/// Products of rows of x, all in one loop but for those of integers, which have their own.
class Products {
 public:
  /// `x`: f32 [..., columns], contiguous.
  Products(const Tensor& x, Activations activations) : x_(x), activations_(activations) {}

  /// `count` rows of x from `row` on, times `rows` of the weight from `first` on, into the same
  /// rows of `y` [rows of x, rows].
  void add(std::int64_t row, std::int64_t count, const CheckedRows& weight, std::int64_t first,
           std::int64_t rows, const Tensor& y) {
    const std::int64_t k = weight.columns;
    const kernels::CodedProduct call{.m = count,
                                     .n = rows,
                                     .k = k,
                                     .a = x_.data<float>() + row * k,
                                     .codes = weight.row(first),
                                     .row_bytes = weight.codes.shape()[1],
                                     .scales = weight.scales ? weight.scale() + first : nullptr,
                                     .c = y.data<float>() + row * rows};
    with_codes(weight.type, [&]<class Codes>(Codes*) {
      if constexpr (kernels::is_integer<Codes>) {
        if (activations_ == Activations::int8) {
          integers_.push_back(kernels::integer_task<Codes>(call));
          return;
        }
      }
      plain_.push_back(kernels::coded_task<Codes>(call));
    });
  }

  void compute() const {
    kernels::coded_products(plain_);
    if (!integers_.empty()) {
      const std::int64_t k = x_.size(-1);
      kernels::integer_products(x_.data<float>(), k == 0 ? 0 : x_.numel() / k, k, integers_);
    }
  }

 private:
  const Tensor& x_;
  Activations activations_;
  std::vector<kernels::CodedTask> plain_;
  std::vector<kernels::IntegerTask> integers_;
};

void check_columns(const Dims& x, const CheckedRows& weight) {
  if (x.empty() || x.back() != weight.columns) {
    fail({.thing = "coded weight",
          .wrong = "the last dim of x does not match the weight",
          .expected = fmt::format("{}", weight.columns),
          .got = to_string(x)});
  }
}

}  // namespace

Tensor product(const Tensor& x, const CodeRows& weight, Activations activations) {
  const CheckedRows from(weight);
  const Tensor left = ops::contiguous(ops::cast(x, DType::f32));
  Dims shape = left.shape();
  check_columns(shape, from);
  shape.back() = from.rows();
  const Tensor y = empty(shape, DType::f32);
  Products products(left, activations);
  products.add(0, from.columns == 0 ? 0 : left.numel() / from.columns, from, 0, from.rows(), y);
  products.compute();
  return y;
}

Tensors group_products(const Tensor& x, const Tensor& counts, std::span<const CodeRows> stacks,
                       Activations activations) {
  const Tensor left = ops::contiguous(ops::cast(x, DType::f32));
  const Tensor of_groups = ops::contiguous(counts);
  const std::int64_t groups = of_groups.numel();
  const auto* const count = of_groups.data<std::int64_t>();
  std::int64_t used = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    used += count[g];
    if (count[g] < 0 || used > left.size(0)) {
      fail({.thing = "coded weights",
            .wrong = "the groups have more rows than there are",
            .expected = fmt::format("{}", left.size(0)),
            .got = fmt::format("{}", used)});
    }
  }
  Products products(left, activations);
  std::vector<CheckedRows> checked;
  Tensors results;
  for (const CodeRows& stack : stacks) {
    const CheckedRows& from = checked.emplace_back(stack);
    check_columns(left.shape(), from);
    if (groups == 0 || from.rows() % groups != 0) {
      fail({.thing = "coded weights",
            .wrong = fmt::format("{} groups do not divide the rows", groups),
            .got = to_string(from.codes.shape())});
    }
    const std::int64_t rows = from.rows() / groups;
    const Tensor& y = results.emplace_back(empty({left.size(0), rows}, DType::f32));
    std::fill_n(y.data<float>() + used * rows, (left.size(0) - used) * rows, 0.0F);
    std::int64_t row = 0;
    for (std::int64_t g = 0; g < groups; row += count[g++]) {
      if (count[g] > 0) {
        products.add(row, count[g], from, g * rows, rows, y);
      }
    }
  }
  products.compute();
  return results;
}

}  // namespace tessera::coded
