export module tessera.app.run:plan_table;

import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;

// The short table before the first step.

export namespace tessera::app {

/// Model, mesh, styles, data, optimizer and outputs of a run: name and value of each row.
TableRows data_rows(const Config& config, const Dataset& data);  // those about the data
TableRows plan_rows(const Config& config, const ModelShape& shape, const Dataset& data);

}  // namespace tessera::app
