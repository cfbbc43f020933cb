module;
#include <memory>
#include <mutex>
#include <utility>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

struct ProcessHost {
  std::mutex mutex;
  SearchOptions search;
  Host* host = nullptr;
};

/// Never destroyed: plugins' objects may outlive main().
ProcessHost& process_host() {
  static auto* p = new ProcessHost;
  return *p;
}

}  // namespace

Host& host() {
  ProcessHost& p = process_host();
  const std::lock_guard lock(p.mutex);
  if (p.host == nullptr) {
    p.host = new Host(p.search);
  }
  return *p.host;
}

void configure_host(SearchOptions search) {
  ProcessHost& p = process_host();
  const std::lock_guard lock(p.mutex);
  require(p.host == nullptr, "plugin host: configured after its first use; configure it before");
  p.search = std::move(search);
}

}  // namespace tessera::plugin
