#include "onednn.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <tessera/recent_map.hpp>
#include <tessera/signals.hpp>
#include <type_traits>
#include <utility>
// libgomp's, where oneDNN brings it; the setting belongs to the calling thread.
extern "C" void omp_set_num_threads(int count) __attribute__((weak));

namespace tessera::kernels::onednn {
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

/// Primitives and memory objects of one thread: no locks, and handles may be changed freely. A
/// cache on purpose, of bounded size, so none of it is workspace. Neither is the memory in which
/// the library packs blocks of the operands: it has one for each thread, which all products share,
/// and whose size is that of blocks, not of operands (measured up to 1.7 MiB, for products of up to
/// 8192 x 4096 x 11008).
class ProductCache {
 public:
  // The library starts with all cores, by OpenMP, whose waiting threads would take our pool's
  // cores. Products are cut into pieces for our pool instead (gemm.cpp).
  ProductCache() {
    if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
  }

  /// Null where the machine's oneDNN has no kernel for the types or the strides.
  CachedProduct* find(const Gemm& shape, dnnl::memory::data_type in, dnnl::memory::data_type out) {
    const Key key{
        shape.trans_a,    shape.trans_b,
        shape.m,          shape.n,
        shape.k,          shape.batch,
        shape.lda,        shape.stride_a,
        shape.ldb,        shape.stride_b,
        shape.ldc,        shape.stride_c,
        shape.accumulate, static_cast<std::int64_t>(in) * 64 + static_cast<std::int64_t>(out)};
    if (const auto* found = products_.find(key)) return found->get();
    std::unique_ptr<CachedProduct> product;
    try {
      product = create(shape, in, out);
    } catch (const dnnl::error&) {
      product = nullptr;  // batch entries that overlap, or one of each for many results
    }
    return products_.insert(key, std::move(product)).get();
  }

  dnnl::stream& stream() { return stream_; }

 private:
  static dnnl::memory::desc describe(bool batched, bool transposed, std::int64_t batch,
                                     std::int64_t rows, std::int64_t columns,
                                     std::int64_t row_stride, std::int64_t batch_stride,
                                     dnnl::memory::data_type type) {
    const std::int64_t down = transposed ? 1 : row_stride;
    const std::int64_t across = transposed ? row_stride : 1;
    if (!batched) return {{rows, columns}, type, {down, across}};
    // A matrix that is used for the whole batch has one entry there.
    const std::int64_t entries = batch_stride == 0 ? 1 : batch;
    const std::int64_t apart =
        batch_stride == 0 ? row_stride * (transposed ? columns : rows) : batch_stride;
    return {{entries, rows, columns}, type, {apart, down, across}};
  }

  /// oneDNN 3 (Debian 13, Ubuntu 24.04) takes the operands at once, oneDNN 2 (Debian 12) in a
  /// struct of their own.
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
  /// A product is tens of kilobytes of code and tables, and texts have many lengths.
  RecentMap<Key, std::unique_ptr<CachedProduct>, NumbersHash> products_{512};
};

ProductCache& cache() {
  thread_local ProductCache products;
  return products;
}

template <class T>
constexpr dnnl::memory::data_type data_type_of() {
  return std::is_same_v<T, float> ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

/// oneDNN ignores the stride of a dim with one element and looks for the stride 1 in the other dim:
/// oneDNN 3 reads a column as if its elements were adjacent, and writes it so.
bool spaced_column(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return columns == 1 && rows > 1 && stride != 1;
}

/// Calls copy(element, place in packed memory) for all elements of the columns of a batch.
template <class T, class Copy>
void each_element(T* column, std::int64_t rows, std::int64_t stride, std::int64_t batch,
                  std::int64_t batch_stride, Copy copy) {
  for (std::int64_t entry = 0; entry < batch; ++entry) {
    for (std::int64_t row = 0; row < rows; ++row) {
      copy(column[entry * batch_stride + row * stride], entry * rows + row);
    }
  }
}

/// An operand that is stored as rows x columns, in a form that every oneDNN reads alike: a spaced
/// column is packed, a single row has its own length as stride. Adjusts the strides.
template <class T>
const T* readable(Workspace& workspace, std::int64_t rows, std::int64_t columns, std::int64_t batch,
                  std::int64_t& stride, std::int64_t& batch_stride, const T* x) {
  if (rows == 1) stride = columns;
  if (!spaced_column(rows, columns, stride)) return x;
  const std::int64_t entries = batch_stride == 0 ? 1 : batch;
  T* packed = workspace.take<T>(entries * rows);
  if (!workspace.counts()) {
    each_element(x, rows, stride, entries, batch_stride,
                 [&](const T& element, std::int64_t place) { packed[place] = element; });
  }
  stride = 1;
  batch_stride = batch_stride == 0 ? 0 : rows;
  return packed;
}

/// Where all operands and the result lie as oneDNN reads them.
template <class T, class Out>
bool execute(bool counts, const Gemm& shape, const T* a, const T* b, Out* c) {
  // gemm() throws where there is none, so nothing else depends on it.
  if (std::is_same_v<T, float> && counts && shape.batch == 1) return true;
  CachedProduct* product = cache().find(shape, data_type_of<T>(), data_type_of<Out>());
  if (product == nullptr || counts) return product != nullptr;
  // The library takes non-const pointers; it writes through c only.
  product->a.set_data_handle(const_cast<T*>(a));
  product->b.set_data_handle(const_cast<T*>(b));
  product->c.set_data_handle(c);
  const std::array<dnnl_exec_arg_t, 3> arguments{{{DNNL_ARG_SRC, product->a.get()},
                                                  {DNNL_ARG_WEIGHTS, product->b.get()},
                                                  {DNNL_ARG_DST, product->c.get()}}};
  const NoHandlers generated_code;
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(product->primitive.get(), cache().stream().get(),
                             static_cast<int>(arguments.size()), arguments.data()),
      "gemm: oneDNN could not execute the product");
  return true;
}

/// With copies of the columns whose elements are not adjacent.
template <class T, class Out>
[[gnu::noinline]] bool packed_product(Workspace& workspace, Gemm shape, const T* a, const T* b,
                                      Out* c) {
  const Workspace::Scope copies(workspace);
  const bool packs = spaced_column(shape.m, shape.n, shape.ldc);
  Gemm adjacent = shape;
  Out* packed = c;
  const auto each = [&](auto copy) {
    each_element(c, shape.m, shape.ldc, shape.batch, shape.stride_c, copy);
  };
  if (packs) {
    packed = workspace.take<Out>(shape.batch * shape.m);
    adjacent.ldc = 1;
    adjacent.stride_c = shape.batch == 1 ? 0 : shape.m;
    if (shape.accumulate && !workspace.counts()) {
      each([&](const Out& element, std::int64_t place) { packed[place] = element; });
    }
  }
  a = readable(workspace, shape.trans_a ? shape.k : shape.m, shape.trans_a ? shape.m : shape.k,
               shape.batch, adjacent.lda, adjacent.stride_a, a);
  b = readable(workspace, shape.trans_b ? shape.n : shape.k, shape.trans_b ? shape.k : shape.n,
               shape.batch, adjacent.ldb, adjacent.stride_b, b);
  if (shape.m == 1) adjacent.ldc = shape.n;
  if (!execute(workspace.counts(), adjacent, a, b, packed)) return false;
  if (packs && !workspace.counts()) {
    each([&](Out& element, std::int64_t place) { element = packed[place]; });
  }
  return true;
}

}  // namespace

template <class T, class Out>
bool product(Workspace& workspace, const Gemm& shape, const T* a, const T* b, Out* c) {
  // A column, or a row, whose stride is not looked at where there is one element.
  if (shape.m == 1 || shape.n == 1 || shape.k == 1) [[unlikely]] {
    return packed_product(workspace, shape, a, b, c);
  }
  return execute(workspace.counts(), shape, a, b, c);
}

template bool product(Workspace&, const Gemm&, const float*, const float*, float*);
template bool product(Workspace&, const Gemm&, const BFloat16*, const BFloat16*, BFloat16*);
template bool product(Workspace&, const Gemm&, const BFloat16*, const BFloat16*, float*);

bool native_bfloat16() {
  static const bool native = [] {
#if defined(__x86_64__)
    // An AVX-512 unit of Intel's without AMX computes bfloat16 no faster than float.
    __builtin_cpu_init();
    const auto has = [](dnnl::cpu_isa isa) {  // an instruction set has the bits of those below it
      const auto bits = static_cast<unsigned>(isa);
      return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
    };
    return has(dnnl::cpu_isa::avx512_core_amx) ||
           (__builtin_cpu_is("amd") && has(dnnl::cpu_isa::avx512_core_bf16));
#else
    return true;
#endif
  }();
  return native;
}

}  // namespace tessera::kernels::onednn
