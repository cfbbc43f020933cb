export module tessera.app.run:fact_rows;

import tessera.run;
import tessera.app.base;

export namespace tessera::app {

/// What is known of a run before its ranks start, as rows of the table before the first step.
TableRows fact_rows(const run::Run& run, const run::Facts& facts);

}  // namespace tessera::app
