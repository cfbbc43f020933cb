module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <range/v3/view/zip.hpp>
#include <string>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :index;

namespace tessera::checkpoint_detail {
namespace {

using ranges::views::zip;

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input({.thing = path, .wrong = what, .advice = "use another checkpoint"});
}

bool inside(const LocalPart& box, const Dims& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) {
    return false;
  }
  for (const auto [offset, part, whole] : zip(box.offset, box.shape, shape)) {
    if (part < 1 || part > whole || offset > whole - part) {
      return false;
    }
  }
  return true;
}

bool overlap(const LocalPart& a, const LocalPart& b) {
  for (const auto [a_first, a_size, b_first, b_size] : zip(a.offset, a.shape, b.offset, b.shape)) {
    if (a_first >= b_first + b_size || b_first >= a_first + a_size) {
      return false;
    }
  }
  return true;
}

/// Boxes that are inside the tensor, do not overlap and have its volume together fill it.
void check_tensor(const std::string& name, const IndexedTensor& tensor, const std::string& path) {
  std::vector<const LocalPart*> boxes;
  std::int64_t volume = 0;
  for (const StoredPart& part : tensor.parts) {
    if (!inside(part.box, tensor.info.shape)) {
      wrong(path, fmt::format("tensor '{}' of shape {}: the part with shape {} and offset {} is "
                              "not inside it",
                              name, to_string(tensor.info.shape), to_string(part.box.shape),
                              to_string(part.box.offset)));
    }
    boxes.push_back(&part.box);
  }
  const auto first = [](const LocalPart* box) {
    return box->offset.empty() ? std::int64_t{0} : box->offset.front();
  };
  std::sort(boxes.begin(), boxes.end(),
            [&](const LocalPart* a, const LocalPart* b) { return first(a) < first(b); });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const std::int64_t end = boxes[i]->shape.empty() ? 1 : first(boxes[i]) + boxes[i]->shape[0];
    for (std::size_t j = i + 1; j < boxes.size() && first(boxes[j]) < end; ++j) {
      if (overlap(*boxes[i], *boxes[j])) {
        wrong(path, fmt::format("tensor '{}': the parts at {} and {} overlap", name,
                                to_string(boxes[i]->offset), to_string(boxes[j]->offset)));
      }
    }
    volume += boxes[i]->shape.product();
  }
  if (volume != tensor.info.shape.product()) {
    wrong(path, fmt::format("tensor '{}': its parts leave gaps (expected {} elements, got {})",
                            name, tensor.info.shape.product(), volume));
  }
}

}  // namespace

void merge(CheckpointIndex& into, CheckpointIndex from, const std::string& path) {
  into.files.merge(from.files);
  for (auto& [name, tensor] : from.tensors) {
    const auto [at, fresh] = into.tensors.emplace(name, tensor);
    if (fresh) {
      continue;
    }
    IndexedTensor& known = at->second;
    if (!(known.info == tensor.info)) {
      fail({.thing = fmt::format("checkpoint {}", path),
            .wrong = fmt::format("the ranks disagree about tensor '{}' ({}{} and {}{})", name,
                                 name_of(known.info.dtype), to_string(known.info.shape),
                                 name_of(tensor.info.dtype), to_string(tensor.info.shape)),
            .advice = "every rank must save the same model"});
    }
    for (StoredPart& part : tensor.parts) {
      const bool replica =
          std::any_of(known.parts.begin(), known.parts.end(), [&](const StoredPart& other) {
            return other.box.offset == part.box.offset && other.box.shape == part.box.shape;
          });
      if (!replica) {
        known.parts.push_back(std::move(part));
      }
    }
  }
}

void check_coverage(const CheckpointIndex& index, const std::string& path) {
  for (const auto& [name, tensor] : index.tensors) {
    check_tensor(name, tensor, path);
  }
}

}  // namespace tessera::checkpoint_detail
