// Version of the links: placement tells it dtensor, and no user of the library: so it is in no
// interface.
#pragma once
#include <cstdint>

namespace tessera::internal {

/// Changes with every set_link: what was planned before may not be the cheapest way any more.
std::uint64_t links_version();

}  // namespace tessera::internal
