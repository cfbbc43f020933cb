module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <range/v3/view/zip.hpp>
#include <string>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :coverage;
import :source;

namespace tessera::checkpoint_detail {
namespace {

using ranges::views::zip;

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input({.thing = path, .wrong = what, .advice = "use another checkpoint"});
}

bool overlap(const LocalPart& a, const LocalPart& b) {
  for (const auto [a_first, a_size, b_first, b_size] : zip(a.offset, a.shape, b.offset, b.shape)) {
    if (a_first >= b_first + b_size || b_first >= a_first + a_size) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool is_inside(const LocalPart& box, const Dims& shape) {
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

// Boxes that are inside the tensor, do not overlap and have its volume together fill it.
void check_coverage(const std::string& name, const TensorInfo& info,
                    const std::vector<const LocalPart*>& parts, const std::string& path) {
  std::vector<const LocalPart*> boxes = parts;
  std::int64_t volume = 0;
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
  if (volume != info.shape.product()) {
    wrong(path, fmt::format("tensor '{}': its parts leave gaps (expected {} elements, got {})",
                            name, info.shape.product(), volume));
  }
}

}  // namespace tessera::checkpoint_detail
