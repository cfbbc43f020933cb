export module tessera.plugin:check;

import tessera.base;
import :host;
import :stamp;

export namespace tessera::plugin {

/// The result of check_library.
struct CheckReport {
  PluginFile found;               // file, stamp, and every refusal of both gates
  std::vector<Offer> registered;  // what register_plugin added, if it was called
  bool tried = false;             // whether it was loaded (only a file that passes gate one is)
  inline bool usable() const { return tried && found.refusals.empty(); }
};

/// Every reason for which a Host would refuse this file. Loading and registering happen in a child
/// process that is ended after `limit`: a library that crashes, ends its process or never returns
/// is refused. Throws Error (run) only when no child can be started.
CheckReport check_library(const std::string& path,
                          std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace tessera::plugin
