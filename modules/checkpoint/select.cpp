module;
#include <fmt/format.h>

#include <algorithm>
#include <string>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :select;

namespace tessera {

SelectedTensors::SelectedTensors(const TensorSource& from, const TensorSelection& selection)
    : TensorSource(from.path()), from_(from), prefix_(selection.prefix) {
  for (const auto& [stored_name, stored] : from.tensors()) {
    if (!stored_name.starts_with(prefix_)) {
      continue;
    }
    const std::string name = stored_name.substr(prefix_.size());
    if (std::ranges::any_of(selection.exclude, [&](const std::string& pattern) {
          return matches_pattern(name, pattern);
        })) {
      continue;
    }
    const bool casts = selection.dtype && can_cast(stored.dtype, *selection.dtype);
    tensors_.emplace(name, TensorInfo{casts ? *selection.dtype : stored.dtype, stored.shape});
  }
  if (tensors_.empty()) {
    fail_input({.thing = from.path(),
                .wrong = fmt::format("it has no tensor whose name begins with '{}'", prefix_)});
  }
}

std::uint64_t SelectedTensors::bytes_read() const { return from_.bytes_read(); }

void SelectedTensors::copy_box(const std::string& name, const LocalPart& box,
                               const Tensor& into) const {
  from_.read(prefix_ + name, box, into);
}

}  // namespace tessera
