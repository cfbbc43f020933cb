export module tessera.app.run:fact_rows;

import tessera.runs;
import tessera.app.base;

export namespace tessera::app {

/// What is known of a run before its ranks start, as rows of the table before the first step.
TableRows fact_rows(const runs::Run& run, const runs::Facts& facts);

}  // namespace tessera::app
