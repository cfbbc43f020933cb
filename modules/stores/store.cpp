module;
#include <string>
module tessera.stores;

import tessera.base;
import tessera.plugin;

namespace tessera::stores {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<StoreScheme>();

}  // namespace

bool ObjectFacts::operator==(const ObjectFacts& other) const {
  return size == other.size && version == other.version && sha256 == other.sha256 &&
         git_blob == other.git_blob;
}
StoreReader::~StoreReader() = default;
std::string StoreReader::fixed_revision(const RequestLimits& /*limits*/) { return {}; }
StoreScheme::~StoreScheme() = default;
std::string StoreScheme::how_to_get_rights() const { return {}; }

}  // namespace tessera::stores
