// Products of matrices by cuBLASLt, where its library is. Include it after the import of
// tessera.base.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "blas_api.hpp"
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// The library's products for one device. Any thread may use it.
class Blas {
 public:
  /// The most that an algorithm may use: what NVIDIA advises for GPUs since Hopper.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  /// The library's version, such as 130001; 0: it is not there.
  static std::size_t version();
  /// Null: there is no library. Errors: it cannot be used.
  static std::unique_ptr<Blas> open();
  /// Whether the library can be asked for the product: one floating type of operands, each matrix
  /// with one contiguous axis, at most one dim of a batch. Data may be absent.
  static bool takes(const ProductArguments& product);

  /// Queues the product, which must be one that it takes; it adds to y where it accumulates. False:
  /// the library has no algorithm for it. Results have the same bits each time: parts of sums are
  /// added in a fixed order. With TESSERA_CUDA_PRODUCTS=measured, the first product of a form that
  /// does not add to y measures up to 8 algorithms, and later ones use the fastest of them: two
  /// runs may choose differently, and have other bits then.
  bool multiply(StreamHandle stream, const ProductArguments& product, void* workspace,
                std::size_t bytes);

 private:
  struct Prepared;
  using Key = std::array<std::int64_t, 20>;

  explicit Blas(BlasHandle handle) : handle_(handle) {}
  Prepared& prepared(const ProductArguments& product);
  /// Queues the product by one of its algorithms.
  void queue(StreamHandle stream, const ProductArguments& product, Prepared& made,
             const BlasChoice& choice, void* workspace) const;
  /// Measures the algorithms of a product's form, and keeps the fastest one. The host waits.
  void choose(StreamHandle stream, const ProductArguments& product, Prepared& made,
              void* workspace) const;

  BlasHandle handle_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Prepared>> prepared_;
};

}  // namespace tessera::cuda
