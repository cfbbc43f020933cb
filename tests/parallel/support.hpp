// What the tests of styles share. Include it behind the imports of tessera.base, tensor, parallel
// and plugin.
#pragma once
#include <vector>

#include "errors.hpp"
#include "on_ranks.hpp"

namespace parallel_test {

using tessera::testing::check;
using tessera::testing::contains;
using tessera::testing::error_of;
using tessera::testing::on_ranks;

/// The shipped plugins, and nothing else.
tessera::plugin::Host& shipped_styles();

/// The same for the process' host, whose first use follows.
void use_shipped_plugins();

/// The largest |a - b| / (1 + |b|); infinity where the counts differ.
double difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace parallel_test
