// The short table before the first step.
#pragma once
#include "config/config.hpp"
#include "data/dataset.hpp"
#include "model_shape.hpp"
#include "table.hpp"

namespace tessera::app {

/// Model, mesh, styles, data, optimizer and outputs of a run: name and value of each row.
TableRows plan_rows(const Config& config, const ModelShape& shape, const Dataset& data);

}  // namespace tessera::app
