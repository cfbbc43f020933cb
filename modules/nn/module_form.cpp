module;
#include <cstdint>
#include <memory>
module tessera.nn;

import tessera.base;

namespace tessera::nn {

const char* ModuleForm::difference(const ModuleForm& was) const {
  return was.training != training           ? "has another training mode"
         : was.switched_off != switched_off ? "has other parts switched off"
         : was.hooks != hooks               ? "has other hooks"
         : was.changes != changes           ? "has other attributes (note_change)"
                                            : nullptr;
}

std::uint64_t ModuleForm::hash() const {
  std::uint64_t hash = 0;
  for (const std::uint64_t part : {std::uint64_t{training}, switched_off, hooks, changes}) {
    hash = hash_combine(hash, part);
  }
  return hash;
}

ModuleForm form_of(const Module& module) {
  return {.training = module.is_training(),
          .switched_off = module.attached<PartSwitches>().parts,
          .hooks = hooks_identity(module),
          .changes = module.attached<Changes>().count};
}

/// Attached to a module: expires with it.
struct Lifetime {
  std::shared_ptr<const bool> life = std::make_shared<const bool>(true);
};

std::weak_ptr<const bool> life_of(Module& module) { return module.attach<Lifetime>().life; }

}  // namespace tessera::nn
