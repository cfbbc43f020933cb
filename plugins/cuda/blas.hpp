// Products of matrices by cuBLASLt, where its library is. Include it after the import of
// tessera.base.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <tessera/recent_map.hpp>
#include <utility>
#include <vector>

#include "blas_api.hpp"
#include "kernels/arguments.hpp"
#include "watched_call.hpp"

namespace tessera::cuda {

/// Factors of 8-bit codes: of each matrix one, or one for each row of a and for each column of b,
/// contiguous. They are in device memory; nothing waits for them.
struct ProductFactors {
  const float* of_a = nullptr;
  const float* of_b = nullptr;
  bool each = false;
};

/// The library's products for one device. Any thread may use it.
class Blas {
 public:
  /// The most that an algorithm may use: what NVIDIA advises for GPUs since Hopper.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  /// The library's version, such as 130001; 0: it is not there.
  static std::size_t version();
  /// Null: there is no library. `watch`: of the calls that may block. Errors: it cannot be used.
  static std::unique_ptr<Blas> open(const WatchedThread& watched, const CallWatch& watch);
  /// Whether the library can be asked for the product: one floating type of operands, each matrix
  /// with one contiguous axis, at most one dim of a batch. Data may be absent.
  static bool takes(const ProductArguments& product);
  /// The same for 8-bit codes: both matrices contiguous along k, sizes and rows that are multiples
  /// of 16 bytes, not both in f8e5m2, a result in f32, bf16 or f16.
  static bool takes_codes(const ProductArguments& product);

  /// Whether the library has an algorithm for a product that it takes.
  bool finds(const ProductArguments& product, const ProductFactors& factors);
  /// Queues the product, which must be one that it takes; it adds to y where it accumulates. Only
  /// codes have factors. False: the library has no algorithm for it. Results have the same bits
  /// each time: parts of sums are added in a fixed order. With TESSERA_CUDA_PRODUCTS=measured, the
  /// first product of a form that does not add to y measures up to 8 algorithms, and later ones use
  /// the fastest of them: two runs may choose differently, and have other bits then.
  bool multiply(StreamHandle stream, const ProductArguments& product, void* workspace,
                std::size_t bytes, const ProductFactors& factors = {});

 private:
  struct Prepared;
  using Key = std::array<std::int64_t, 20>;

  /// A product to be queued.
  struct Product {
    BlasHandle handle = nullptr;
    StreamHandle stream = nullptr;
    ProductArguments arguments;
    ProductFactors factors;
    std::shared_ptr<Prepared> made;
    void* workspace = nullptr;
  };

  Blas(BlasHandle handle, CallWatch watch) : handle_(handle), watch_(std::move(watch)) {}
  std::shared_ptr<Prepared> prepared(const ProductArguments& product,
                                     const ProductFactors& factors);
  /// The algorithms that the library advises for a product's form.
  static std::vector<BlasChoice> advised(const WatchedThread& watched, BlasHandle handle,
                                         const Prepared& made,
                                         const std::array<std::uint32_t, 3>& alignments);
  /// Queues the product by one of its algorithms. `watched`: it may be the algorithm's first one;
  /// null: it is not.
  static void queue(const WatchedThread* watched, const Product& product, const BlasChoice& choice);
  /// The fastest one of the product's algorithms, which it measures.
  static BlasChoice fastest(const WatchedThread& watched, const Product& product);

  BlasHandle handle_;
  CallWatch watch_;
  std::mutex mutex_;
  RecentMap<Key, std::shared_ptr<Prepared>, NumbersHash> prepared_{1 << 12};
};

}  // namespace tessera::cuda
