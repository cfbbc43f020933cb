export module tessera.app.trace:black_box;

import tessera.app.base;

// What the ranks of a run that has failed did last (log.blackbox).

export namespace tessera::app {

/// Who failed, who waited for whom and in which call, and whose calls were others than those of the
/// other ranks: a few sentences, and a table of the ranks. `paths`: files of one run, one of each
/// machine, or folders of such files. Errors (input): there is no such file; a file is none of
/// these; two of them have the same rank or another number of ranks.
std::string black_box_text(const std::vector<std::string>& paths);

}  // namespace tessera::app
