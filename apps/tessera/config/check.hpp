// Checks between keys.
#pragma once
#include <set>
#include <string>

#include "config/config.hpp"
#include "config/problems.hpp"

namespace tessera::app {

/// Adds the problems between keys. A check that needs a key in `unread` is skipped.
void check_config(const Config& config, const std::set<std::string>& unread, Problems& problems);

}  // namespace tessera::app
