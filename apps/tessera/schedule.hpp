// The learning rate of every step.
#pragma once
#include <cstdint>

#include "config/config.hpp"

namespace tessera::app {

/// The learning rate of step `step` (counted from 0) of a run of `steps`.
/// Warm-up: lr*(step+1)/warmup. Then with t = (step-warmup)/(steps-warmup) in [0,1):
/// constant lr; cosine min + (lr-min)*(1+cos(pi*t))/2; linear min + (lr-min)*(1-t).
double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step);

}  // namespace tessera::app
