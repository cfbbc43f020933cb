#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"

namespace parallel_test {

using namespace tessera;

plugin::Host& shipped_styles() {
  static plugin::Host host(
      {.paths = {TESSERA_SHIPPED_PLUGINS}, .environment = false, .standard_places = false});
  return host;
}

void use_shipped_plugins() {
  [[maybe_unused]] static const bool configured = [] {
    plugin::configure_host(
        {.paths = {TESSERA_SHIPPED_PLUGINS}, .environment = false, .standard_places = false});
    return true;
  }();
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    largest = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                     : std::max(largest, difference);
  }
  return largest;
}

}  // namespace parallel_test
