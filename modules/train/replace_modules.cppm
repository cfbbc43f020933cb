export module tessera.train:replace_modules;

import tessera.base;
import tessera.passes;
import tessera.nn;

export namespace tessera {

/// Replaces modules of a model that is only captured, before a plan is applied to it, as the change
/// says (graph::Change::replacement). Returns their names. Errors (input), with the change's name:
/// it replaces no module of this model; what it throws.
std::vector<std::string> replace_modules(nn::Module& root, const graph::Change& change);

}  // namespace tessera
