// The built-in optimizers whose step treats each element alone.
module tessera.optim:elementwise;

import tessera.base;
import :rule;

namespace tessera::optim {

/// Null: there is none of this name.
const UpdateRule::Factory* elementwise_rule(std::string_view name);
std::vector<std::string> elementwise_rules();

}  // namespace tessera::optim
