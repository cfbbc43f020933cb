export module tessera.nn:module_form;

import tessera.base;
import :tree;

export namespace tessera::nn {

/// What a module's call depends on besides its inputs, parameters and buffers, for who records
/// calls.
struct ModuleForm {
  bool training = true;
  std::uint64_t switched_off = 0;  // parts of the layer: PartSwitches
  std::uint64_t hooks = 0;         // see hooks_identity()
  std::uint64_t changes = 0;

  /// How it differs from what it was, "has other hooks"; null: it does not.
  const char* difference(const ModuleForm& was) const;
  std::uint64_t hash() const;
};
ModuleForm form_of(const Module& module);

/// Expires with the module.
std::weak_ptr<const bool> life_of(Module& module);

}  // namespace tessera::nn
