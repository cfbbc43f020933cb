// The short table before the first step.
#pragma once
#include <string>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "model_shape.hpp"

namespace tessera::app {

/// Model, mesh, styles, data, optimizer and outputs of a run as an aligned table.
std::string describe_plan(const Config& config, const LlamaConfig& shape, const Dataset& data);

}  // namespace tessera::app
