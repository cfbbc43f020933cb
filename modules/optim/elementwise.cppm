// The built-in optimizers whose step treats each element alone.
module tessera.optim:elementwise;

import tessera.base;
import :rule;

namespace tessera::optim {

/// Null: there is none of this name.
const UpdateRule::Factory* elementwise_rule(std::string_view name);
std::vector<std::string> elementwise_rules();

/// Adam or AdamW whose moments are 8-bit codes, except of small parameters and of shards that do
/// not consist of whole blocks, which keep theirs.
std::unique_ptr<UpdateRule> adam_8bit_rule(const AdamWOptions& options, bool decoupled);

}  // namespace tessera::optim
