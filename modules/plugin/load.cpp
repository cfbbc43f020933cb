module;
#define BOOST_DLL_USE_STD_FS
#include <dlfcn.h>
#include <fmt/format.h>

#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "elf_file.hpp"
#include "tessera/plugin_gate.h"
module tessera.plugin;

namespace tessera::plugin {
namespace {

/// Leaked on purpose: code that registered something must outlive everything that can call it.
const boost::dll::shared_library& keep_for_ever(boost::dll::shared_library loaded) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::list<boost::dll::shared_library>;
  const std::lock_guard lock(*mutex);
  return all->emplace_back(std::move(loaded));
}

/// Whether the stamp that was mapped is the one that was checked.
bool same_stamp(const boost::dll::shared_library& library, const LibraryFile& file) {
  StampPlace place;
  return library.has(TESSERA_PLUGIN_STAMP_SYMBOL) && locate_stamp(file.bytes, place).empty() &&
         place.size == sizeof(GateStamp) &&
         std::memcmp(&library.get<const GateStamp>(TESSERA_PLUGIN_STAMP_SYMBOL),
                     file.bytes.data() + place.offset, sizeof(GateStamp)) == 0;
}

std::string load_and_register_unguarded(const LibraryFile& file, Registrar& registrar) {
  boost::dll::shared_library library;
  boost::dll::fs::error_code error;
  if (identity_of(file.path) != file.identity) {
    return "the file was replaced while it was checked";
  }
  library.load(file.path, error, boost::dll::load_mode::rtld_now);
  if (error) {
    const char* why = dlerror();  // Boost does not report it
    return fmt::format("cannot be loaded: {}", why != nullptr ? why : error.message());
  }
  const boost::dll::shared_library& handle = keep_for_ever(std::move(library));
  if (identity_of(file.path) != file.identity || !same_stamp(handle, file)) {
    return "the file was replaced while it was loaded";
  }
  if (!handle.has(TESSERA_PLUGIN_REGISTER_SYMBOL)) {
    return "has no " TESSERA_PLUGIN_REGISTER_SYMBOL "; build it with tessera_add_plugin";
  }
  handle.get_alias<void(Registrar&)>(TESSERA_PLUGIN_REGISTER_SYMBOL)(registrar);
  return "";
}

}  // namespace

std::string load_and_register(const LibraryFile& file, Registrar& registrar) {
  if (const DataFileFormat* const format = data_file_format(file.path)) {
    return read_and_register(*format, file, registrar);
  }
  try {
    return load_and_register_unguarded(file, registrar);
  } catch (const std::exception& thrown) {
    return fmt::format("threw while it was loaded or registered: {}", thrown.what());
  } catch (...) {
    return "threw something that is not a std::exception while it was loaded or registered";
  }
}

}  // namespace tessera::plugin
