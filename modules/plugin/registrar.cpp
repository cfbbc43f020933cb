module;
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.plugin;

namespace tessera::plugin {

Registrar::Registrar(std::string plugin, std::string file)
    : plugin_(std::move(plugin)), file_(std::move(file)) {}

const std::vector<Entry>& Registrar::entries() const { return entries_; }

void Registrar::add_entry(const Kind& kind, std::string_view factory_type, std::string_view name,
                          std::shared_ptr<const void> factory) {
  entries_.push_back({std::string(kind.name), std::string(name), kind.version,
                      std::string(factory_type), std::move(factory), plugin_, file_});
}

}  // namespace tessera::plugin
