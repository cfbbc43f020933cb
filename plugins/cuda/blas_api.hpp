// The part of cuBLASLt's interface that the plugin uses, declared here as driver_api.hpp declares
// the driver's; tests/cuda/cuda_header.cpp compares it with cublasLt.h where a toolkit is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "driver_api.hpp"

namespace tessera::cuda {

enum class BlasStatus : int {
  success = 0,
  not_initialized = 1,
  invalid_value = 7,
  execution_failed = 13,
  not_supported = 15
};
enum class BlasType : int {  // cudaDataType_t
  f32 = 0,
  f64 = 1,
  f16 = 2,
  bf16 = 14,
  f8e4m3 = 28,
  f8e5m2 = 29
};
enum class BlasCompute : int { f32 = 68, f64 = 70 };
enum class BlasOperation : int { none = 0, transpose = 1 };
enum class BlasEpilogue : int { none = 1, bias = 4 };
/// What factors of 8-bit codes belong to: the whole matrix, or each row of a and column of b.
enum class BlasScaleMode : int { one = 0, each = 3 };
enum class BlasProductAttribute : int {
  transpose_a = 3,
  transpose_b = 4,
  epilogue = 7,
  bias = 8,
  scale_of_a = 17,  // its address in device memory
  scale_of_b = 18,
  scale_mode_of_a = 31,  // since 12.9
  scale_mode_of_b = 32
};
enum class BlasLayoutAttribute : int { batch_count = 5, batch_offset = 6 };
enum class BlasPreferenceAttribute : int {
  most_workspace = 1,
  reduction_schemes = 3,
  alignment_a = 5,
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8
};
/// Parts of a sum that was split are added in the workspace, in a fixed order.
inline constexpr std::uint32_t reduction_in_workspace = 2;

struct BlasHandleData;
struct BlasProductData;
struct BlasLayoutData;
struct BlasPreferenceData;
using BlasHandle = BlasHandleData*;
using BlasProduct = BlasProductData*;        // cublasLtMatmulDesc_t
using BlasLayout = BlasLayoutData*;          // cublasLtMatrixLayout_t
using BlasPreference = BlasPreferenceData*;  // cublasLtMatmulPreference_t

struct BlasAlgorithm {
  std::uint64_t data[8];
};
struct BlasChoice {  // cublasLtMatmulHeuristicResult_t
  BlasAlgorithm algorithm;
  std::size_t workspace;
  BlasStatus state;
  float waves;
  int reserved[4];
};

/// The library's functions, without "cublasLt".
struct BlasApi {
  Immediate<std::size_t()> version;
  Blocking<BlasStatus(BlasHandle* handle)> create;
  Immediate<const char*(BlasStatus status)> status_string;
  Immediate<BlasStatus(BlasProduct* product, BlasCompute compute, BlasType scale)> product_create;
  Immediate<BlasStatus(BlasProduct product, BlasProductAttribute attribute, const void* value,
                       std::size_t bytes)>
      product_set;
  Immediate<BlasStatus(BlasLayout* layout, BlasType type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t leading)>
      layout_create;
  Immediate<BlasStatus(BlasLayout layout, BlasLayoutAttribute attribute, const void* value,
                       std::size_t bytes)>
      layout_set;
  Immediate<BlasStatus(BlasPreference* preference)> preference_create;
  Immediate<BlasStatus(BlasPreference preference, BlasPreferenceAttribute attribute,
                       const void* value, std::size_t bytes)>
      preference_set;
  Immediate<BlasStatus(BlasPreference preference)> preference_destroy;
  Blocking<BlasStatus(BlasHandle handle, BlasProduct product, BlasLayout a, BlasLayout b,
                      BlasLayout c, BlasLayout d, BlasPreference preference, int most,
                      BlasChoice* choices, int* found)>
      choose;
  using Multiply = BlasStatus(BlasHandle handle, BlasProduct product, const void* alpha,
                              const void* a, BlasLayout layout_a, const void* b,
                              BlasLayout layout_b, const void* beta, const void* c,
                              BlasLayout layout_c, void* d, BlasLayout layout_d,
                              const BlasAlgorithm* algorithm, void* workspace, std::size_t bytes,
                              StreamHandle stream);
  Queueing<Multiply> multiply;
  Blocking<Multiply> first_multiply;  // by an algorithm, whose kernel it loads
};

/// Calls use(the place of a function's pointer, its name in the library) for each function.
template <class Use>
void each_function(BlasApi& api, Use use) {
  use(api.version, "cublasLtGetVersion");
  use(api.create, "cublasLtCreate");
  use(api.status_string, "cublasLtGetStatusString");
  use(api.product_create, "cublasLtMatmulDescCreate");
  use(api.product_set, "cublasLtMatmulDescSetAttribute");
  use(api.layout_create, "cublasLtMatrixLayoutCreate");
  use(api.layout_set, "cublasLtMatrixLayoutSetAttribute");
  use(api.preference_create, "cublasLtMatmulPreferenceCreate");
  use(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  use(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  use(api.choose, "cublasLtMatmulAlgoGetHeuristic");
  use(api.multiply, "cublasLtMatmul");
  use(api.first_multiply, "cublasLtMatmul");
}

}  // namespace tessera::cuda
