module;
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :job;
import :group_actions;

namespace tessera {

std::optional<std::string> first_not_finite(const StateDict& state) {
  using namespace checkpoint_detail;
  for (const auto& [name, tensor] : state.tensors) {
    const Tensor& local = local_of(tensor);
    if (is_floating(tensor.dtype()) && !all_finite(bytes_of(packed(local)), tensor.dtype())) {
      return name;
    }
  }
  return std::nullopt;
}

StateDict stored_part(const StateDict& state, const std::shared_ptr<const CheckpointBase>& base) {
  if (!base) {
    return state;
  }
  StateDict stored;
  stored.scalars = state.scalars;
  for (const auto& [name, tensor] : state.tensors) {
    const auto found = base->tensors.find(name);
    if (found == base->tensors.end()) {
      stored.tensors.emplace(name, tensor);
      continue;
    }
    const TensorInfo& there = found->second;
    if (!(there == TensorInfo{tensor.dtype(), tensor.shape()})) {
      fail({.thing = "checkpoint",
            .wrong = fmt::format("tensor '{}' is not the one of its base", name),
            .expected = fmt::format("{} {}", name_of(there.dtype), to_string(there.shape)),
            .got = fmt::format("{} {}", name_of(tensor.dtype()), to_string(tensor.shape()))});
    }
  }
  return stored;
}

void save_checkpoint(const std::string& folder, const StateDict& state,
                     const std::string& meta_data, const SaveOptions& options) {
  collective::Communicator& group = checkpoint_detail::group_named("checkpoint");
  checkpoint_detail::run_job(group,
                             checkpoint_detail::make_job(group, folder, state, meta_data, options));
}

}  // namespace tessera
