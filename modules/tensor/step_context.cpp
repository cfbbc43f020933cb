module;
#include <cstdint>
#include <utility>
module tessera.tensor;

import tessera.base;
import :path;
import :step_context;

namespace tessera {
const StepContext& step_context() {
  static const StepContext outside;
  const StepContext* const own = path_state().step;
  return own == nullptr ? outside : *own;
}

std::uint64_t new_order() {
  static std::uint64_t last = 0;
  return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

void StepScope::enter() {
  const std::int64_t blocks = own_.feature_blocks;
  require(blocks >= 1 && (blocks & (blocks - 1)) == 0,
          "StepContext: the number of feature blocks must be a power of two");
  before_ = std::exchange(path_state().step, &own_);
}

StepScope::~StepScope() { path_state().step = before_; }

}  // namespace tessera
