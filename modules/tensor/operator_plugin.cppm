export module tessera.tensor:operator_plugin;

import tessera.base;
import tessera.plugin;
import :op;

export namespace tessera {

/// The plugin kind "operator". A plugin offers complete operators: shape rule,
/// placement rule, kernel, backward. In its register_plugin:
///     registrar.add<OperatorPlugin>("softcap", [] {
///       return with_arguments<SoftcapArgs>({.schema = "softcap(x)", ...}); });
/// The name is the operator's, as its schema says.
class OperatorPlugin {
 public:
  static constexpr plugin::Kind plugin_kind{"operator"};
  using Factory = std::function<Op()>;
};

/// The operator of this name: a registered one, else the one of the plugin that offers it, which is
/// found, loaded and registered for the life of the process. Safe to call from several threads; all
/// ranks must load the same. Errors (input): no plugin offers it, its plugin is refused; (run): the
/// plugin's operator has another name, or its schema cannot be read.
const Op& load_operator(std::string_view name);

}  // namespace tessera
