// libcublasLt.so.13: products of matrices, as far as the plugin uses them. A product is two tasks
// of a stream, as algorithms that split sums are: the first leaves the sums in the workspace, the
// second rounds them. So a workspace that another stream uses meanwhile gives wrong results.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>
#include <thread>
#include <vector>

#include "blas_api.hpp"
#include "control.hpp"
#include "fault.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "modes.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace tessera::cuda {

struct BlasHandleData {
  pid_t owner = 0;
};
struct BlasProductData {
  BlasCompute compute = BlasCompute::f32;
  BlasOperation of_a = BlasOperation::none, of_b = BlasOperation::none;
  BlasEpilogue epilogue = BlasEpilogue::none;
  const void* bias = nullptr;
  const float* scale_of_a = nullptr;  // of the device; null: 1
  const float* scale_of_b = nullptr;
  BlasScaleMode mode_of_a = BlasScaleMode::one, mode_of_b = BlasScaleMode::one;
};
struct BlasLayoutData {
  BlasType type = BlasType::f32;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0, offset = 0;
  std::int32_t count = 1;
};
struct BlasPreferenceData {
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};  // a, b, c, d
};

}  // namespace tessera::cuda

namespace {

using namespace tessera::cuda;
using emulator::Executor;
using emulator::Fault;
using emulator::Memory;
using emulator::text;

std::atomic<std::uint64_t> products = 0;
std::atomic<bool> refuses = false;
/// There are several algorithms for each product, with the same bits; all but one are slow.
constexpr std::uint64_t algorithms = 4;
constexpr auto slow = std::chrono::milliseconds(2);
std::atomic<std::uint64_t> fastest = 0;
std::atomic<std::uint64_t> last_algorithm = 0;

std::size_t size_of(BlasType type) {
  switch (type) {
    case BlasType::f64:
      return 8;
    case BlasType::f32:
      return 4;
    case BlasType::bf16:
    case BlasType::f16:
      return 2;
    case BlasType::f8e4m3:
    case BlasType::f8e5m2:
      return 1;
  }
  return 0;
}

bool is_code(BlasType type) { return type == BlasType::f8e4m3 || type == BlasType::f8e5m2; }

double load(BlasType type, const std::byte* at) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (type) {
    case BlasType::f64:
      return as(double{});
    case BlasType::f32:
      return as(float{});
    case BlasType::bf16:
      return static_cast<float>(as(tessera::kernels::BFloat16{}));
    case BlasType::f16:
      return static_cast<float>(as(tessera::kernels::Half{}));
    case BlasType::f8e4m3:
      return static_cast<float>(as(tessera::kernels::Float8E4M3{}));
    case BlasType::f8e5m2:
      return static_cast<float>(as(tessera::kernels::Float8E5M2{}));
  }
  return 0;
}

void store(BlasType type, std::byte* at, double value) {
  const auto as = [&](auto rounded) { std::memcpy(at, &rounded, sizeof(rounded)); };
  switch (type) {
    case BlasType::f64:
      return as(value);
    case BlasType::f32:
      return as(static_cast<float>(value));
    case BlasType::bf16:
      return as(tessera::kernels::BFloat16(static_cast<float>(value)));
    case BlasType::f16:
      return as(tessera::kernels::Half(static_cast<float>(value)));
    case BlasType::f8e4m3:
    case BlasType::f8e5m2:
      return;  // no result has it: fits_codes()
  }
}

/// A matrix of a queued product; `data` is the device's address.
struct Operand {
  const char* name;
  const void* data;
  BlasLayoutData layout;
  bool transposed = false;

  std::uint64_t rows() const { return transposed ? layout.columns : layout.rows; }
  std::uint64_t columns() const { return transposed ? layout.rows : layout.columns; }
  /// Elements from the first to after the last one.
  std::size_t extent() const {
    return static_cast<std::size_t>(layout.offset * (layout.count - 1) +
                                    layout.leading *
                                        static_cast<std::int64_t>(layout.columns - 1)) +
           layout.rows;
  }
  std::byte* opened() const {
    const std::size_t bytes = extent() * size_of(layout.type);
    const std::string wrong = Memory::instance().is_device(data)
                                  ? Memory::instance().check(data, bytes)
                                  : "is not of a device";
    if (!wrong.empty()) {
      throw Fault(text("cublasLtMatmul: ", bytes, " bytes of matrix ", name, " at an address that ",
                       wrong));
    }
    return Memory::instance().opened(data);
  }
  std::size_t at(std::int32_t entry, std::uint64_t row, std::uint64_t column) const {
    const std::uint64_t across = transposed ? row : column;
    return static_cast<std::size_t>(layout.offset * entry) +
           static_cast<std::size_t>(layout.leading) * across + (transposed ? column : row);
  }
};

struct Work {
  Operand a, b, d;
  BlasProductData product;
  std::byte* workspace = nullptr;  // opened
  bool accumulate = false;
};

/// Sums in the order of k, in the type of the product.
template <class C>
void multiply(const Work& work) {
  const std::byte* a = work.a.opened();
  const std::byte* b = work.b.opened();
  auto* sums = reinterpret_cast<C*>(work.workspace);
  for (std::int32_t entry = 0; entry < work.d.layout.count; ++entry) {
    for (std::uint64_t column = 0; column < work.d.columns(); ++column) {
      for (std::uint64_t row = 0; row < work.d.rows(); ++row) {
        C sum = 0;
        for (std::uint64_t k = 0; k < work.a.columns(); ++k) {
          sum += static_cast<C>(load(work.a.layout.type,
                                     a + work.a.at(entry, row, k) * size_of(work.a.layout.type))) *
                 static_cast<C>(load(work.b.layout.type, b + work.b.at(entry, k, column) *
                                                                 size_of(work.b.layout.type)));
        }
        *sums++ = sum;
      }
    }
  }
}

/// What multiplies the sum of each row of the first matrix, or of each column of the second.
std::vector<float> scales_of(const char* name, const float* given, BlasScaleMode mode,
                             std::uint64_t count) {
  std::vector<float> scales(count, 1);
  if (given == nullptr) {
    return scales;
  }
  const bool each = mode == BlasScaleMode::each;
  const Operand row = {name, given, {BlasType::f32, each ? count : 1, 1}};
  const std::byte* const values = row.opened();
  for (std::size_t i = 0; i < count; ++i) {
    scales[i] = static_cast<float>(load(BlasType::f32, values + (each ? i * sizeof(float) : 0)));
  }
  return scales;
}

template <class C>
void round_sums(const Work& work) {
  const BlasType type = work.d.layout.type;
  std::byte* d = work.d.opened();
  const std::byte* bias = nullptr;
  if (work.product.epilogue == BlasEpilogue::bias) {
    const Operand row = {"bias", work.product.bias, {type, work.d.rows(), 1}};
    bias = row.opened();
  }
  const BlasProductData& product = work.product;
  const auto of_row = scales_of("a's scales", product.scale_of_a, product.mode_of_a, work.d.rows());
  const auto of_column =
      scales_of("b's scales", product.scale_of_b, product.mode_of_b, work.d.columns());
  const auto* sums = reinterpret_cast<const C*>(work.workspace);
  for (std::int32_t entry = 0; entry < work.d.layout.count; ++entry) {
    for (std::uint64_t column = 0; column < work.d.columns(); ++column) {
      for (std::uint64_t row = 0; row < work.d.rows(); ++row) {
        C sum = *sums++ * static_cast<C>(of_row[row] * of_column[column]);
        if (bias != nullptr) {
          sum += static_cast<C>(load(type, bias + row * size_of(type)));
        }
        std::byte* const element = d + work.d.at(entry, row, column) * size_of(type);
        if (work.accumulate) {
          sum += static_cast<C>(load(type, element));
        }
        store(type, element, sum);
      }
    }
  }
}

/// What an algorithm is made for: it is of no use for another product.
constexpr int number_place = 48;  // of the algorithm's number in its word 6

BlasAlgorithm algorithm_for(const BlasProductData& product, const BlasLayoutData& a,
                            const BlasLayoutData& b, const BlasLayoutData& d,
                            std::uint64_t alignments, std::uint64_t number) {
  const auto both = [](std::uint64_t rows, std::uint64_t columns) { return rows << 32 | columns; };
  return {{both(a.rows, a.columns), both(b.rows, b.columns), both(d.rows, d.columns),
           static_cast<std::uint64_t>(a.leading), static_cast<std::uint64_t>(b.leading),
           static_cast<std::uint64_t>(d.leading),
           number << number_place | both(static_cast<std::uint64_t>(product.mode_of_a) << 8 |
                                             static_cast<std::uint64_t>(product.epilogue),
                                         static_cast<std::uint64_t>(d.type) << 26 |
                                             static_cast<std::uint64_t>(b.type) << 21 |
                                             static_cast<std::uint64_t>(a.type) << 16 |
                                             static_cast<std::uint64_t>(a.count)),
           alignments}};
}

/// Of results as they are summed. Where nothing is computed, none: a library's does not grow with
/// the result.
std::size_t workspace_for(const BlasProductData& product, const BlasLayoutData& d) {
  if (emulator::Modes::instance().only_lists) {
    return 0;
  }
  return (product.compute == BlasCompute::f64 ? 8 : 4) * d.rows * d.columns *
         static_cast<std::size_t>(d.count);
}

bool fits(const BlasProductData& product, const BlasLayoutData& a, const BlasLayoutData& b,
          const BlasLayoutData& d) {
  const Operand left = {"a", nullptr, a, product.of_a == BlasOperation::transpose};
  const Operand right = {"b", nullptr, b, product.of_b == BlasOperation::transpose};
  const auto has_room = [](const BlasLayoutData& x) {
    return x.leading >= static_cast<std::int64_t>(x.rows);
  };
  return left.rows() == d.rows && right.columns() == d.columns && left.columns() == right.rows() &&
         a.count == d.count && b.count == d.count && has_room(a) && has_room(b) && has_room(d) &&
         (product.compute == BlasCompute::f64) == (d.type == BlasType::f64);
}

/// What NVIDIA's documentation of cublasLtMatmul demands of products in 8 bits on a GPU of compute
/// capability 9.0; of others, only that types are the same, or that sums of 16-bit types are f32.
bool has_kernel(const BlasProductData& product, const BlasLayoutData& a, const BlasLayoutData& b,
                const BlasLayoutData& d, const std::uint32_t* alignments) {
  if (!is_code(a.type) && !is_code(b.type)) {
    const bool is_half = a.type == BlasType::bf16 || a.type == BlasType::f16;
    return a.type == b.type && (a.type == d.type || (is_half && d.type == BlasType::f32)) &&
           product.scale_of_a == nullptr && product.scale_of_b == nullptr;
  }
  const auto is_aligned = [](const BlasLayoutData& x) {
    const std::size_t size = size_of(x.type);
    return x.rows * size % 16 == 0 && static_cast<std::size_t>(x.leading) * size % 16 == 0;
  };
  return is_code(a.type) && is_code(b.type) &&
         (a.type == BlasType::f8e4m3 || b.type == BlasType::f8e4m3) &&
         (d.type == BlasType::f32 || d.type == BlasType::bf16 || d.type == BlasType::f16) &&
         product.of_a == BlasOperation::transpose && product.of_b == BlasOperation::none &&
         product.epilogue == BlasEpilogue::none && product.mode_of_a == product.mode_of_b &&
         d.count == 1 && is_aligned(a) && is_aligned(b) && is_aligned(d) && b.columns % 16 == 0 &&
         std::all_of(alignments, alignments + 4, [](std::uint32_t bytes) { return bytes >= 16; });
}

template <class T>
bool take(T& value, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) {
    return false;
  }
  std::memcpy(&value, from, bytes);
  return true;
}

BlasStatus status_of(bool right) { return right ? BlasStatus::success : BlasStatus::invalid_value; }

/// Whether the algorithm's kernel is loaded by this product.
bool is_first(const BlasAlgorithm& algorithm) {
  static std::mutex mutex;
  static std::set<std::array<std::uint64_t, 8>> loaded;
  const std::lock_guard lock(mutex);
  return loaded.insert(std::to_array(algorithm.data)).second;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return 130001; }

BlasStatus cublasLtCreate(BlasHandle* handle) {
  emulator_wait_where_asked(__func__);
  *handle = new BlasHandleData{getpid()};
  return BlasStatus::success;
}

const char* cublasLtGetStatusString(BlasStatus status) {
  switch (status) {
    case BlasStatus::success:
      return "CUBLAS_STATUS_SUCCESS";
    case BlasStatus::not_initialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case BlasStatus::invalid_value:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case BlasStatus::execution_failed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case BlasStatus::not_supported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

BlasStatus cublasLtMatmulDescCreate(BlasProduct* product, BlasCompute compute, BlasType scale) {
  *product = new BlasProductData{compute};
  return status_of((compute == BlasCompute::f64) == (scale == BlasType::f64));
}

BlasStatus cublasLtMatmulDescDestroy(BlasProduct product) {
  delete product;
  return BlasStatus::success;
}

BlasStatus cublasLtMatmulDescSetAttribute(BlasProduct product, BlasProductAttribute attribute,
                                          const void* value, std::size_t bytes) {
  switch (attribute) {
    case BlasProductAttribute::transpose_a:
      return status_of(take(product->of_a, value, bytes));
    case BlasProductAttribute::transpose_b:
      return status_of(take(product->of_b, value, bytes));
    case BlasProductAttribute::epilogue:
      return status_of(take(product->epilogue, value, bytes));
    case BlasProductAttribute::bias:
      return status_of(take(product->bias, value, bytes));
    case BlasProductAttribute::scale_of_a:
      return status_of(take(product->scale_of_a, value, bytes));
    case BlasProductAttribute::scale_of_b:
      return status_of(take(product->scale_of_b, value, bytes));
    case BlasProductAttribute::scale_mode_of_a:
      return status_of(take(product->mode_of_a, value, bytes));
    case BlasProductAttribute::scale_mode_of_b:
      return status_of(take(product->mode_of_b, value, bytes));
  }
  return BlasStatus::invalid_value;
}

BlasStatus cublasLtMatrixLayoutCreate(BlasLayout* layout, BlasType type, std::uint64_t rows,
                                      std::uint64_t columns, std::int64_t leading) {
  *layout = new BlasLayoutData{type, rows, columns, leading};
  return BlasStatus::success;
}

BlasStatus cublasLtMatrixLayoutDestroy(BlasLayout layout) {
  delete layout;
  return BlasStatus::success;
}

BlasStatus cublasLtMatrixLayoutSetAttribute(BlasLayout layout, BlasLayoutAttribute attribute,
                                            const void* value, std::size_t bytes) {
  return status_of(attribute == BlasLayoutAttribute::batch_count
                       ? take(layout->count, value, bytes)
                       : take(layout->offset, value, bytes));
}

BlasStatus cublasLtMatmulPreferenceCreate(BlasPreference* preference) {
  *preference = new BlasPreferenceData;
  return BlasStatus::success;
}

BlasStatus cublasLtMatmulPreferenceDestroy(BlasPreference preference) {
  delete preference;
  return BlasStatus::success;
}

BlasStatus cublasLtMatmulPreferenceSetAttribute(BlasPreference preference,
                                                BlasPreferenceAttribute attribute,
                                                const void* value, std::size_t bytes) {
  switch (attribute) {
    case BlasPreferenceAttribute::most_workspace:
      return status_of(take(preference->workspace, value, bytes));
    case BlasPreferenceAttribute::reduction_schemes: {
      std::uint32_t schemes = 0;
      return status_of(take(schemes, value, bytes) && schemes == reduction_in_workspace);
    }
    default:
      const int matrix =
          static_cast<int>(attribute) - static_cast<int>(BlasPreferenceAttribute::alignment_a);
      return status_of(take(preference->alignments[matrix], value, bytes));
  }
}

BlasStatus cublasLtMatmulAlgoGetHeuristic(BlasHandle handle, BlasProduct product, BlasLayout a,
                                          BlasLayout b, BlasLayout, BlasLayout d,
                                          BlasPreference preference, int most, BlasChoice* choices,
                                          int* found) {
  emulator_wait_where_asked(__func__);
  *found = 0;
  if (handle->owner != getpid()) {
    return BlasStatus::not_initialized;
  }
  if (most < 1 || !fits(*product, *a, *b, *d)) {
    return BlasStatus::invalid_value;
  }
  const std::size_t workspace = workspace_for(*product, *d);
  if (refuses || workspace > preference->workspace ||
      !has_kernel(*product, *a, *b, *d, preference->alignments)) {
    return BlasStatus::not_supported;
  }
  std::uint64_t alignments = 0;
  for (const std::uint32_t alignment : preference->alignments) {
    alignments = alignments << 16 | alignment;
  }
  for (; *found < most && *found < static_cast<int>(algorithms); ++*found) {
    choices[*found] = {.algorithm = algorithm_for(*product, *a, *b, *d, alignments,
                                                  static_cast<std::uint64_t>(*found)),
                       .workspace = workspace,
                       .state = BlasStatus::success,
                       .waves = 1,
                       .reserved = {}};
  }
  return BlasStatus::success;
}

BlasStatus cublasLtMatmul(BlasHandle handle, BlasProduct product, const void* alpha, const void* a,
                          BlasLayout layout_a, const void* b, BlasLayout layout_b, const void* beta,
                          const void* c, BlasLayout, void* d, BlasLayout layout_d,
                          const BlasAlgorithm* algorithm, void* workspace, std::size_t bytes,
                          StreamHandle stream) {
  if (is_first(*algorithm)) {
    emulator_wait_where_asked(__func__);
  }
  if (handle->owner != getpid()) {
    return BlasStatus::not_initialized;
  }
  const bool is_double = product->compute == BlasCompute::f64;
  const auto number = [&](const void* at) {
    return load(is_double ? BlasType::f64 : BlasType::f32, static_cast<const std::byte*>(at));
  };
  const std::uint64_t number_of_it = algorithm->data[6] >> number_place;
  const BlasAlgorithm wanted =
      algorithm_for(*product, *layout_a, *layout_b, *layout_d, algorithm->data[7], number_of_it);
  bool right = number_of_it < algorithms && stream != nullptr && number(alpha) == 1 &&
               (number(beta) == 0 || number(beta) == 1) && c == d &&
               std::memcmp(&wanted, algorithm, sizeof(wanted)) == 0 &&
               bytes >= workspace_for(*product, *layout_d) &&
               Memory::instance().is_device(workspace) &&
               Memory::instance().check(workspace, bytes).empty();
  const void* const matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    const auto address = reinterpret_cast<std::uint64_t>(matrices[i]);
    right = right && address % (algorithm->data[7] >> (16 * (3 - i)) & 0xffffU) == 0;
  }
  if (!right) {
    return BlasStatus::invalid_value;
  }
  const Work work = {{"a", a, *layout_a, product->of_a == BlasOperation::transpose},
                     {"b", b, *layout_b, product->of_b == BlasOperation::transpose},
                     {"d", d, *layout_d},
                     *product,
                     Memory::instance().opened(workspace),
                     number(beta) == 1};
  ++products;
  last_algorithm = number_of_it;
  const bool is_slow = number_of_it != fastest;
  Executor::instance().push(*stream->stream, {.work = [=] {
    std::this_thread::sleep_for(is_slow ? slow : slow.zero());
    is_double ? multiply<double>(work) : multiply<float>(work);
  }});
  Executor::instance().push(*stream->stream, {.work = [=] {
    is_double ? round_sums<double>(work) : round_sums<float>(work);
  }});
  return BlasStatus::success;
}

void emulator_refuse_products(bool refuse) { refuses = refuse; }
void emulator_set_fastest_algorithm(std::uint64_t number) { fastest = number; }
std::uint64_t emulator_last_algorithm() { return last_algorithm; }
std::uint64_t emulator_products() { return products; }

}  // extern "C"
