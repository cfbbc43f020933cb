// linear and its gradients for 8-bit floating codes with factors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"
#include "kernels/codes.hpp"
#include "kernels/scaled.hpp"
#include "kernels/tile_size.hpp"
#include "product.hpp"

namespace tessera::cuda {
namespace {

constexpr std::int64_t most_blocks = 65535;
/// Rows of codes that are read in words begin at multiples of it.
constexpr std::int64_t codes_alignment = 16;

/// Operands: codes, factors, of which dims [first, last) are summed over. Without their address.
Factors factors_of(const Tensor& codes, const Tensor& factors, int first, int last) {
  Factors f = {};
  f.first_summed = first;
  f.last_summed = last;
  f.first_kept = first == 0 ? last : 0;
  f.last_kept = first == 0 ? codes.dims() : first;
  for (int d = 0; d < codes.dims(); ++d) {
    const std::int64_t count = factors.dims() == 0 ? 1 : factors.shape()[d];
    f.extents[d] = codes.shape()[d];
    f.blocks[d] = count == 0 ? 1 : std::max<std::int64_t>(1, (f.extents[d] + count - 1) / count);
    f.strides[d] = count > 1 ? factors.strides()[d] : 0;
    f.vary = f.vary || (count > 1 && d >= first && d < last);
  }
  return f;
}

/// The factors of an operand's rows, or columns: one for all, one for each, or others.
enum class FactorKind : std::uint8_t { whole, each, otherwise };

/// `kept`: how many elements the dims of the result have.
FactorKind factored(const Tensor& factors, const Factors& f, std::int64_t kept) {
  if (factors.numel() == 1) {
    return FactorKind::whole;
  }
  return !f.vary && factors.numel() == kept && factors.is_contiguous() ? FactorKind::each
                                                                       : FactorKind::otherwise;
}

// cuBLASLt multiplies codes that are contiguous along k (the sum). Of others it gets a turned copy,
// in the workspace behind its own.

/// A product as the library computes it.
struct LibraryProduct {
  ProductArguments product;  // of the turned codes
  bool each = false;         // ProductFactors::each
  bool turns_a = false, turns_b = false;

  std::size_t bytes_of_a() const {
    return turns_a ? static_cast<std::size_t>(product.m.size * product.k.size) : 0;
  }
  std::size_t bytes_of_b() const {
    return turns_b ? static_cast<std::size_t>(product.k.size * product.n.size) : 0;
  }
  std::size_t workspace() const { return Blas::workspace_bytes + bytes_of_a() + bytes_of_b(); }
};

/// Lets codes be contiguous along k, if rows and k are each one dim and turn_codes() can read them;
/// whether they were not.
bool turn(std::int64_t* of_rows, const Axis& rows, std::int64_t* of_k, const Axis& k) {
  if (rows.dims != 1 || k.dims != 1 || of_k[0] == 1 || of_rows[0] != 1 ||
      of_k[0] % codes_alignment != 0) {
    return false;
  }
  of_rows[0] = k.size;
  of_k[0] = 1;
  return true;
}

/// Nothing: it is a product for the kernel of our own. Data may be absent.
std::optional<LibraryProduct> for_library(const ScaledArguments& s, const Tensor& factors_a,
                                          const Tensor& factors_b) {
  LibraryProduct made = {.product = s.product};
  ProductArguments& p = made.product;
  const FactorKind a = factored(factors_a, s.a, p.m.size);
  const FactorKind b = factored(factors_b, s.b, p.n.size);
  if (a != b || a == FactorKind::otherwise) {
    return std::nullopt;
  }
  made.each = a == FactorKind::each;
  made.turns_a = turn(p.a.rows, p.m, p.a.columns, p.k);
  made.turns_b = turn(p.b.columns, p.n, p.b.rows, p.k);
  if (!Blas::takes_codes(p)) {
    return std::nullopt;
  }
  return made;
}

/// Queues the copy of codes [k, rows] as [rows, k].
void turn_codes(const Tensor& on, const void* codes, std::int64_t k, std::int64_t rows,
                std::int64_t leading, std::byte* to) {
  const TurnArguments t = {codes, to, k, rows, leading};
  const std::int64_t tiles = codes_tiles(k, rows);
  launch(on, "turn_codes", static_cast<unsigned>(std::min(tiles, most_blocks)), threads_per_block,
         t);
}

/// Queues the product by the library, if it has an algorithm; else nothing, and false.
bool multiply_by_library(const Call& call, const Tensor& y, const ScaledArguments& s,
                         LibraryProduct made) {
  auto& driver = static_cast<CudaDriver&>(driver_of(y.device()));
  Blas* const blas = driver.blas();
  const auto is_aligned = [](const void* codes) {
    return reinterpret_cast<std::uintptr_t>(codes) % codes_alignment == 0;
  };
  if (blas == nullptr || call.workspace.size() < made.workspace() ||
      !is_aligned(s.product.a.data) || !is_aligned(s.product.b.data)) {
    return false;
  }
  ProductArguments& p = made.product;
  std::byte* const behind = call.workspace.data() + Blas::workspace_bytes;
  p.a.data = made.turns_a ? behind : s.product.a.data;
  p.b.data = made.turns_b ? behind + made.bytes_of_a() : s.product.b.data;
  const ProductFactors factors = {.of_a = s.a.data, .of_b = s.b.data, .each = made.each};
  if ((made.turns_a || made.turns_b) && !blas->finds(p, factors)) {
    return false;
  }
  if (made.turns_a) {
    turn_codes(y, s.product.a.data, p.k.size, p.m.size, s.product.a.columns[0], behind);
  }
  if (made.turns_b) {
    turn_codes(y, s.product.b.data, p.k.size, p.n.size, s.product.b.rows[0],
               behind + made.bytes_of_a());
  }
  return blas->multiply(driver.handle_of(current_stream(y.device()).native()), p,
                        call.workspace.data(), call.workspace.size(), factors);
}

/// The call's product with its factors, without the codes' addresses. Codes begin at operand
/// `first`; operand 0 before them is added to.
using ArgumentsOf = ScaledArguments (*)(const Call& call, const Tensor& y);

/// a [..., k] times b, whose dim `summed` is summed over.
template <std::size_t first, int summed>
ScaledArguments rows_product(const Call& call, const Tensor& y) {
  const Tensor& a = call.in[first];
  const Tensor& b = call.in[first + 2];
  const int last = a.dims() - 1;
  return {.product = rows_times(a, b, summed, {}, y),
          .a = factors_of(a, call.in[first + 1], last, last + 1),
          .b = factors_of(b, call.in[first + 3], summed, summed + 1)};
}

template <std::size_t first>
ScaledArguments grad_weight(const Call& call, const Tensor& y) {
  const Tensor& dy = call.in[first];
  const Tensor& x = call.in[first + 2];
  const int last = dy.dims() - 1;
  return {.product = columns_times(dy, x, y),
          .a = factors_of(dy, call.in[first + 1], 0, last),
          .b = factors_of(x, call.in[first + 3], 0, last)};
}

template <std::size_t first, ArgumentsOf arguments_of>
ScaledArguments complete(const Call& call, const Tensor& y) {
  ScaledArguments s = arguments_of(call, y);
  if constexpr (first == 1) {
    add_to_result(s.product, y);
  }
  return s;
}

template <std::size_t first, ArgumentsOf arguments_of>
void multiply(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  if constexpr (first == 1) {
    check_in_place(call);
  }
  if (y.numel() == 0) {
    return;
  }
  ScaledArguments s = complete<first, arguments_of>(call, y);
  ProductArguments& p = s.product;
  p.a.data = call.in[first].device_address();
  p.b.data = call.in[first + 2].device_address();
  p.y.data = y.device_address();
  p.bias.data = p.accumulate ? p.y.data : nullptr;
  s.a.data = static_cast<const float*>(call.in[first + 1].device_address());
  s.b.data = static_cast<const float*>(call.in[first + 3].device_address());
  const auto made = for_library(s, call.in[first + 1], call.in[first + 3]);
  if (made && multiply_by_library(call, y, s, *made)) {
    return;
  }
  const std::int64_t tiles = product_tiles(p.m.size) * product_tiles(p.n.size);
  launch(y, "scaled_product", static_cast<unsigned>(std::min(tiles, most_blocks)),
         threads_per_block, s);
}

template <std::size_t first, ArgumentsOf arguments_of>
std::size_t workspace_of(const Call& call, std::span<const Tensor> out) {
  const Tensor& y = out.empty() ? call.in[0] : out[0];  // empty: planned, in place
  const auto made =
      for_library(complete<first, arguments_of>(call, y), call.in[first + 1], call.in[first + 3]);
  return made ? made->workspace() : 0;
}

template <std::size_t first, ArgumentsOf arguments_of>
constexpr DeviceKernel product = {.run = multiply<first, arguments_of>,
                                  .workspace = workspace_of<first, arguments_of>};

}  // namespace

void add_scaled_products(KernelTable& table) {
  table["scaled_linear"] = product<0, rows_product<0, 1>>;
  table["scaled_linear_grad_input"] = product<0, rows_product<0, 0>>;
  table["scaled_linear_grad_input_"] = product<1, rows_product<1, 0>>;
  table["scaled_linear_grad_weight"] = product<0, grad_weight<0>>;
  table["scaled_linear_grad_weight_"] = product<1, grad_weight<1>>;
}

}  // namespace tessera::cuda
