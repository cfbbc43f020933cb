// The built-in optimizers whose step treats each element alone.
module tessera.optim:elementwise;

import tessera.base;
import tessera.ops;
import :rule;

namespace tessera::optim {

/// Null: there is none of this name.
const UpdateRule::Factory* elementwise_rule(std::string_view name);
std::vector<std::string> elementwise_rules();

/// Adam or AdamW whose moments are 8-bit codes, except of small parameters and of shards that do
/// not consist of whole blocks, which keep theirs.
std::unique_ptr<UpdateRule> adam_8bit_rule(const AdamWOptions& options, bool decoupled);

/// One step of AdamW for parameters in bf16: those and their states are rounded with random bits
/// that follow from the seed, the parameter's number, the step, and the element's place in the
/// whole parameter. The settings are the operator's; the group has the rest.
void update_rounded(const ops::AdamStep& settings, const UpdateGroup& group);

}  // namespace tessera::optim
