// Graphs of operations as cuDNN's descriptors say them, computed on the host.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dnn_api.hpp"

namespace emulator {

using Extents = std::array<std::int64_t, 4>;

struct DnnTensor {
  std::int64_t id = 0;
  tessera::cuda::DnnType type = tessera::cuda::DnnType::f32;
  Extents extents = {}, strides = {};
  std::int64_t alignment = 0;
  bool is_virtual = false, is_by_value = false;

  std::int64_t count() const { return extents[0] * extents[1] * extents[2] * extents[3]; }
  /// Elements from the first to after the last one.
  std::int64_t extent() const;
  bool operator==(const DnnTensor&) const = default;
};

/// One operation; which operands it has depends on its kind.
struct DnnOperation {
  tessera::cuda::DnnKind kind = {};
  tessera::cuda::DnnPointwise pointwise = {};
  tessera::cuda::DnnReduction reduction = {};
  std::int64_t axis = -1;
  DnnTensor x, y;
  DnnTensor b = {.id = 0};          // id 0: absent
  DnnTensor condition = {.id = 0};  // the same
};

struct DnnGraph {
  std::vector<DnnOperation> operations;

  /// What is wrong with it; empty: nothing. Each tensor has one description; one that is virtual is
  /// written before it is read, once; no other is both written by two operations; extents fit.
  std::string problem() const;
  /// Tensors that a call gives addresses for, and whether the graph writes them.
  std::map<std::int64_t, std::pair<DnnTensor, bool>> given() const;
  /// Bytes for the products of two virtual tensors that are not both of the forward pass.
  std::size_t workspace() const;
  bool has_softmax() const;

  /// Computes it in f32, rounding each tensor to its type. `load` fills a tensor that is given, in
  /// the order of its dims; `store` gets those that are written.
  void run(const std::function<std::vector<float>(const DnnTensor&)>& load,
           const std::function<void(const DnnTensor&, const std::vector<float>&)>& store) const;
};

/// A value as an element of the type holds it.
float rounded(tessera::cuda::DnnType type, float value);
std::size_t size_of(tessera::cuda::DnnType type);

}  // namespace emulator
