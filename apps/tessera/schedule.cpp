#include "schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::app {

double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step) {
  const double top = optimizer.lr;
  if (step < optimizer.warmup) {
    return top * static_cast<double>(step + 1) / static_cast<double>(optimizer.warmup);
  }
  if (optimizer.schedule == "constant") {
    return top;
  }
  const double rest = static_cast<double>(std::max<std::int64_t>(1, steps - optimizer.warmup));
  const double t = std::min(1.0, static_cast<double>(step - optimizer.warmup) / rest);
  const double bottom = top * optimizer.min_lr_ratio;
  const double share =
      optimizer.schedule == "cosine" ? 0.5 * (1 + std::cos(std::numbers::pi * t)) : 1 - t;
  return bottom + (top - bottom) * share;
}

}  // namespace tessera::app
