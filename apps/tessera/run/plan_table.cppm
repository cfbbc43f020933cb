export module tessera.app.run:plan_table;

import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.hub;

// The short table before the first step.

export namespace tessera::app {

/// Model, mesh, styles, data, optimizer and outputs of a run: name and value of each row.
TableRows data_rows(const runs::RunSpec& config,
                    const runs::Dataset& data);  // those about the data
TableRows plan_rows(const runs::RunSpec& config, const runs::DataTask& task);

}  // namespace tessera::app
