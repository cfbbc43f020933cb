module;
#include <optional>
#include <string>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.tensor;
import :chunks;
import :job;
import :together;

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

void save_checkpoint(const std::string& folder, const StateDict& state,
                     const std::string& meta_data, const SaveOptions& options) {
  collective::Communicator& group = checkpoint_detail::group_named("checkpoint");
  checkpoint_detail::run_job(group,
                             checkpoint_detail::make_job(group, folder, state, meta_data, options));
}

}  // namespace tessera
