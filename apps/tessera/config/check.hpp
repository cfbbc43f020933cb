// What keys must satisfy together.
#pragma once
#include <set>
#include <string>

#include "config/config.hpp"
#include "config/problems.hpp"

namespace tessera::app {

/// Adds what is impossible between keys. A check that needs a key in `unread` is left out.
void check_config(const Config& config, const std::set<std::string>& unread, Problems& problems);

}  // namespace tessera::app
