module;
#include <cmath>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

// Whether a placement that a rule refuses would be right: each rank's part of the operands goes
// through the plain operator, and the results are looked at as shards, copies or terms of a sum.
namespace tessera::conformance {
namespace {

/// Rank `rank`'s part.
Tensor part_of(const Tensor& whole, const Layout& layout, int rank) {
  const LocalPart part = local_part(whole.shape(), layout, rank);
  Tensor x = whole;
  for (int d = 0; d < whole.dims(); ++d) {
    x = ops::narrow(x, d, part.offset[d], part.shape[d]);
  }
  return ops::clone(x);
}

bool close(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         largest_difference(a, b) <= 4 * tolerance(b.dtype());
}

/// A placement under which the ranks' results are `expected`.
std::optional<Placement> placement_of(std::span<const Tensor> results, const Tensor& expected,
                                      const DeviceMesh& mesh) {
  bool copies = true;
  for (const Tensor& result : results) {
    copies = copies && close(result, expected);
  }
  if (copies) {
    return Replicate();
  }
  for (int d = 0; d < expected.dims(); ++d) {
    const Layout layout = Layout::make(mesh, {Shard(d)});
    bool shards = true;
    for (std::size_t rank = 0; shards && rank < results.size(); ++rank) {
      shards = close(results[rank], part_of(expected, layout, static_cast<int>(rank)));
    }
    if (shards) {
      return Shard(d);
    }
  }
  if (is_floating(expected.dtype()) && results[0].shape() == expected.shape()) {
    Tensor sum = results[0];
    for (std::size_t rank = 1; rank < results.size(); ++rank) {
      if (!(results[rank].shape() == expected.shape())) {
        return std::nullopt;
      }
      sum = ops::add(sum, results[rank]);
    }
    if (close(sum, expected)) {
      return Partial();
    }
  }
  return std::nullopt;
}

}  // namespace

std::string right_as(const CallSample& sample, const Placements& placements,
                     const CallResult& plain, int size) {
  if (sample.op->in_place || sample.op->cpu == nullptr || plain.out.empty()) {
    return {};
  }
  for (std::size_t i = 0; i < placements.size(); ++i) {
    // An operand of one element that only some ranks have tells nothing.
    if (placements[i].is_partial() ||
        (placements[i].is_shard() && sample.inputs[i].shape()[placements[i].dim()] < 2)) {
      return {};
    }
  }
  const NoGrad constant;
  const DeviceMesh mesh = DeviceMesh::make({"a"}, Dims{size});
  std::vector<std::vector<Tensor>> results(plain.out.size());
  try {
    for (int rank = 0; rank < size; ++rank) {
      std::vector<Tensor> parts;
      parts.reserve(placements.size());
      for (std::size_t i = 0; i < placements.size(); ++i) {
        const Tensor& x = sample.inputs[i];
        parts.push_back(x ? part_of(x, Layout::make(mesh, {placements[i]}), rank) : x);
      }
      const Tensors out = call(*sample.op, parts, sample.attributes);
      if (out.size() != plain.out.size()) {
        return {};
      }
      for (std::size_t i = 0; i < out.size(); ++i) {
        results[i].push_back(out[i]);
      }
    }
  } catch (const std::exception&) {
    return {};  // the parts do not fit together
  }
  std::string text;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (plain.out[i].numel() == 0) {
      return {};
    }
    const std::optional<Placement> placement = placement_of(results[i], plain.out[i], mesh);
    if (!placement) {
      return {};
    }
    text += (text.empty() ? "" : ", ") + to_string(*placement);
  }
  return text;
}

}  // namespace tessera::conformance
