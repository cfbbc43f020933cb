export module tessera.plugin:load;

import tessera.base;
import :file;
import :registrar;
import :stamp;

export namespace tessera::plugin {

/// Gate two, for a file that passed gate one: loads it (all symbols now, visible to nobody else),
/// compares the stamp in memory with the one that was read, and calls its register function.
/// Returns "" or why it is refused; what it added before that is in the registrar and must be
/// dropped. A library is never unloaded. A file of data is read instead (DataFileFormat).
std::string load_and_register(const LibraryFile& file, Registrar& registrar);

}  // namespace tessera::plugin
