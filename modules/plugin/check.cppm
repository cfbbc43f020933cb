export module tessera.plugin:check;

import tessera.base;
import :host;
import :stamp;

export namespace tessera::plugin {

/// What check_library found out.
struct CheckReport {
  Found found;                    // file, stamp, and every refusal of both gates
  std::vector<Offer> registered;  // what register_plugin added, where it came that far
  bool tried = false;             // whether it was loaded (only what passes gate one is)
  inline bool usable() const { return tried && found.refusals.empty(); }
};

/// All that a Host would refuse of this file, and why. Loading and registering happen in a child
/// process that is ended after `limit`: a library that crashes, ends the process or never returns
/// is a refusal like any other. Throws Error (run) only when no child can be started.
CheckReport check_library(const std::string& path,
                          std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace tessera::plugin
