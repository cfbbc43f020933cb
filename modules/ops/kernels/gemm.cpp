#include "gemm.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "parallel.hpp"
#include "pointwise.hpp"
#include "simd.hpp"
#include "tile.hpp"

// A row's bits and the number of rows: the double kernel here gives each element by one chain over
// k, so they do not depend on m. oneDNN chooses a blocking by the extents and promises nothing; on
// AVX-512 float rows had the same bits for m = 1, 2, 4, ... 256 at all extents tried
// (tests/gemm.cpp, tag [measure]). bfloat16: see kFewRows.

namespace tessera::kernels {
namespace {

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// A created primitive with the memory objects that its arguments are passed in.
struct CachedProduct {
  dnnl::matmul primitive;
  dnnl::memory a;
  dnnl::memory b;
  dnnl::memory c;
};

using Key = std::array<std::int64_t, 14>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0x9e3779b97f4a7c15U;
    for (const std::int64_t word : key) {
      hash = (hash ^ static_cast<std::uint64_t>(word)) * 0xff51afd7ed558ccdU;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

/// Primitives and memory objects of one thread: no locks, and handles may be changed freely.
class ProductCache {
 public:
  // The library starts with all cores; it gets what the calling thread is allowed.
  ProductCache() { set_threads(threads()); }

  /// Null where the machine's oneDNN has no kernel for the types.
  CachedProduct* find(const Gemm& shape, dnnl::memory::data_type in, dnnl::memory::data_type out) {
    const Key key{shape.trans_a,
                  shape.trans_b,
                  shape.m,
                  shape.n,
                  shape.k,
                  shape.batch,
                  shape.lda,
                  shape.stride_a,
                  shape.ldb,
                  shape.stride_b,
                  shape.ldc,
                  shape.stride_c,
                  shape.accumulate,
                  static_cast<std::int64_t>(in) * 64 + static_cast<std::int64_t>(out) +
                      std::int64_t{4096} * threads()};
    if (const auto found = products_.find(key); found != products_.end())
      return found->second.get();
    if (products_.size() >= kCapacity) products_.clear();  // generation walks through many lengths
    return products_.emplace(key, create(shape, in, out)).first->second.get();
  }

  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kCapacity = 4096;

  static dnnl::memory::desc describe(bool batched, bool transposed, std::int64_t batch,
                                     std::int64_t rows, std::int64_t columns,
                                     std::int64_t row_stride, std::int64_t batch_stride,
                                     dnnl::memory::data_type type) {
    const std::int64_t down = transposed ? 1 : row_stride;
    const std::int64_t across = transposed ? row_stride : 1;
    if (!batched) return {{rows, columns}, type, {down, across}};
    // A matrix that is used for the whole batch has one entry there.
    const std::int64_t entries = batch_stride == 0 ? 1 : batch;
    const std::int64_t apart = batch_stride == 0 ? rows * columns : batch_stride;
    return {{entries, rows, columns}, type, {apart, down, across}};
  }

  /// oneDNN 3 (Ubuntu 24.04) takes the operands at once, oneDNN 2 (Debian 12) in a struct of their
  /// own.
  template <class Product>
  static auto describe_product(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                               const dnnl::memory::desc& c,
                               const dnnl::primitive_attr& attributes) {
    using Description = typename Product::primitive_desc;
    using Operand = dnnl::memory::desc;
    if constexpr (std::is_constructible_v<Description, dnnl::engine, Operand, Operand, Operand,
                                          dnnl::primitive_attr, bool>) {
      return Description(engine(), a, b, c, attributes, true);
    } else {
      return Description(typename Product::desc(a, b, c), attributes, engine(), true);
    }
  }

  static std::unique_ptr<CachedProduct> create(const Gemm& shape, dnnl::memory::data_type in,
                                               dnnl::memory::data_type out) {
    const bool batched = shape.batch > 1;
    const auto a = describe(batched, shape.trans_a, shape.batch, shape.m, shape.k, shape.lda,
                            shape.stride_a, in);
    const auto b = describe(batched, shape.trans_b, shape.batch, shape.k, shape.n, shape.ldb,
                            shape.stride_b, in);
    const auto c =
        describe(batched, false, shape.batch, shape.m, shape.n, shape.ldc, shape.stride_c, out);
    dnnl::primitive_attr attributes;
    if (shape.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const auto description = describe_product<dnnl::matmul>(a, b, c, attributes);
    if (!description) return nullptr;
    return std::make_unique<CachedProduct>(
        CachedProduct{dnnl::matmul(description), dnnl::memory(a, engine(), nullptr),
                      dnnl::memory(b, engine(), nullptr), dnnl::memory(c, engine(), nullptr)});
  }

  dnnl::stream stream_{engine()};
  std::unordered_map<Key, std::unique_ptr<CachedProduct>, KeyHash> products_;
};

ProductCache& cache() {
  thread_local ProductCache products;
  return products;
}

template <class T>
constexpr dnnl::memory::data_type data_type_of() {
  return std::is_same_v<T, float> ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

/// False where oneDNN has no kernel.
template <class T, class Out>
bool library_product(const Gemm& shape, const T* a, const T* b, Out* c) {
  CachedProduct* product = cache().find(shape, data_type_of<T>(), data_type_of<Out>());
  if (product == nullptr) return false;
  // The library takes non-const pointers; it writes through c only.
  product->a.set_data_handle(const_cast<T*>(a));
  product->b.set_data_handle(const_cast<T*>(b));
  product->c.set_data_handle(c);
  const std::array<dnnl_exec_arg_t, 3> arguments{{{DNNL_ARG_SRC, product->a.get()},
                                                  {DNNL_ARG_WEIGHTS, product->b.get()},
                                                  {DNNL_ARG_DST, product->c.get()}}};
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(product->primitive.get(), cache().stream().get(),
                             static_cast<int>(arguments.size()), arguments.data()),
      "gemm: oneDNN could not execute the product");
  return true;
}

template <class Out>
void zero_rows(const Gemm& shape, Out* c) {
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    for (std::int64_t row = 0; row < shape.m; ++row) {
      std::fill_n(c + entry * shape.stride_c + row * shape.ldc, shape.n, Out{});
    }
  }
}

/// One batch entry in double: op(B) is copied in panels of full vectors, C's too.
void double_product(const Gemm& shape, const double* a, const double* b, double* c) {
  constexpr std::int64_t kPanel = 32;
  const std::int64_t panels = (shape.n + kPanel - 1) / kPanel;
  const std::int64_t a_row = shape.trans_a ? 1 : shape.lda;
  const std::int64_t a_k = shape.trans_a ? shape.lda : 1;
  const std::int64_t b_k = shape.trans_b ? 1 : shape.ldb;
  const std::int64_t b_column = shape.trans_b ? shape.ldb : 1;
  parallel_for(0, panels, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> right(static_cast<std::size_t>(shape.k * kPanel));
    std::vector<double> result(static_cast<std::size_t>(shape.m * kPanel));
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t first = panel * kPanel;
      const std::int64_t width = std::min(kPanel, shape.n - first);
      for (std::int64_t p = 0; p < shape.k; ++p) {
        double* row = right.data() + p * kPanel;
        for (std::int64_t j = 0; j < width; ++j) row[j] = b[p * b_k + (first + j) * b_column];
        std::fill(row + width, row + kPanel, 0.0);
      }
      simd::dispatch([&](auto isa) __attribute__((always_inline)) {
        tile::product<false>(
            isa, tile::Product<double>{shape.m, kPanel, shape.k, a, a_row, a_k, right.data(),
                                       kPanel, result.data(), kPanel});
      });
      for (std::int64_t i = 0; i < shape.m; ++i) {
        for (std::int64_t j = 0; j < width; ++j) {
          double& target = c[i * shape.ldc + first + j];
          target =
              result[static_cast<std::size_t>(i * kPanel + j)] + (shape.accumulate ? target : 0.0);
        }
      }
    }
  });
}

/// Scratch that a thread keeps, as fresh pages would cost more than the conversion.
float* scratch(std::size_t which, std::int64_t count) {
  thread_local std::array<std::vector<float>, 3> buffers;
  std::vector<float>& buffer = buffers[which];
  if (buffer.size() < static_cast<std::size_t>(count))
    buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

/// A stored matrix [rows, columns] with a row stride, made contiguous and float.
template <class T>
void widen(std::int64_t rows, std::int64_t columns, const T* x, std::int64_t stride,
           float* result) {
  constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
  if (stride == columns) return cast(kType, DType::f32, rows * columns, x, result);
  for (std::int64_t row = 0; row < rows; ++row) {
    cast(kType, DType::f32, columns, x + row * stride, result + row * columns);
  }
}

/// Does the library's bfloat16 product beat its float product on widened operands? With AMX, and on
/// AMD's processors; Intel's vdpbf16ps alone has half of the float rate (measured: 84 against 155
/// GFLOP/s).
bool native_bfloat16() {
  static const bool native = [] {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx ||
           __builtin_cpu_is("amd");
#else
    return true;
#endif
  }();
  return native;
}

/// Few rows read B once: widening it would cost more than the product. (So below this number of
/// rows the bits of a bfloat16 row can differ from those above it.)
constexpr std::int64_t kFewRows = 8;

/// 16-bit operands by way of float copies, one batch entry: for Half, and machines without
/// bfloat16.
template <class T, class Out>
void widened_product(const Gemm& shape, const T* a, const T* b, Out* c) {
  const std::int64_t a_rows = shape.trans_a ? shape.k : shape.m;
  const std::int64_t a_columns = shape.trans_a ? shape.m : shape.k;
  const std::int64_t b_rows = shape.trans_b ? shape.n : shape.k;
  const std::int64_t b_columns = shape.trans_b ? shape.k : shape.n;
  float* wide_a = scratch(0, a_rows * a_columns);
  float* wide_b = scratch(1, b_rows * b_columns);
  widen(a_rows, a_columns, a, shape.lda, wide_a);
  widen(b_rows, b_columns, b, shape.ldb, wide_b);
  Gemm wide = shape;
  wide.batch = 1;
  wide.stride_a = wide.stride_b = wide.stride_c = 0;
  wide.lda = a_columns;
  wide.ldb = b_columns;
  if constexpr (std::is_same_v<Out, float>) {
    gemm(wide, wide_a, wide_b, c);
  } else {
    float* wide_c = scratch(2, shape.m * shape.n);
    if (shape.accumulate) widen(shape.m, shape.n, c, shape.ldc, wide_c);
    wide.ldc = shape.n;
    gemm(wide, wide_a, wide_b, wide_c);
    constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
    if (shape.ldc == shape.n) return cast(DType::f32, kType, shape.m * shape.n, wide_c, c);
    for (std::int64_t row = 0; row < shape.m; ++row) {
      cast(DType::f32, kType, shape.n, wide_c + row * shape.n, c + row * shape.ldc);
    }
  }
}

/// A batch over one B whose rows of A and C follow each other is one product.
Gemm folded(Gemm shape) {
  if (shape.batch > 1 && shape.stride_b == 0 && !shape.trans_a &&
      shape.stride_a == shape.m * shape.lda && shape.stride_c == shape.m * shape.ldc) {
    shape.m *= shape.batch;
    shape.batch = 1;
  }
  if (shape.batch == 1) shape.stride_a = shape.stride_b = shape.stride_c = 0;
  return shape;
}

}  // namespace

template <class T, class Out>
void gemm(const Gemm& given, const T* a, const T* b, Out* c) {
  const Gemm shape = folded(given);
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return;
  if (shape.k == 0) {
    if (!shape.accumulate) zero_rows(shape, c);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (library_product(shape, a, b, c)) return;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    if ((shape.m < kFewRows || native_bfloat16()) && library_product(shape, a, b, c)) return;
  }
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    const T* entry_a = a + entry * shape.stride_a;
    const T* entry_b = b + entry * shape.stride_b;
    Out* entry_c = c + entry * shape.stride_c;
    if constexpr (std::is_same_v<T, double>) {
      double_product(shape, entry_a, entry_b, entry_c);
    } else if constexpr (!std::is_same_v<T, float>) {
      widened_product(shape, entry_a, entry_b, entry_c);
    } else {
      throw std::runtime_error("gemm: oneDNN has no kernel for this float product");
    }
  }
}

template void gemm(const Gemm&, const float*, const float*, float*);
template void gemm(const Gemm&, const double*, const double*, double*);
template void gemm(const Gemm&, const BFloat16*, const BFloat16*, BFloat16*);
template void gemm(const Gemm&, const BFloat16*, const BFloat16*, float*);
template void gemm(const Gemm&, const Half*, const Half*, Half*);
template void gemm(const Gemm&, const Half*, const Half*, float*);

}  // namespace tessera::kernels
