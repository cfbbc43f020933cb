export module tessera.plugin:registrar;

import tessera.base;
import :kind;

export namespace tessera::plugin {

/// One registered factory, its type erased.
struct Entry {
  std::string kind;
  std::string name;
  int version = 1;  // of the interface that the plugin was compiled against
  std::string factory_type;
  std::shared_ptr<const void> factory;  // null when the plugin gave an empty function
  std::string plugin;                   // that registered it
  std::string file;                     // of that plugin
};

/// Takes what register_plugin() adds. It takes effect after that function has returned, and only if
/// every entry is accepted.
class Registrar {
 public:
  Registrar(std::string plugin, std::string file);

  /// Offers `name` as a factory of Interface.
  template <Pluggable Interface>
  inline void add(std::string_view name, FactoryOf<Interface> factory) {
    std::shared_ptr<const void> held;
    if (factory) {
      held = std::make_shared<const FactoryOf<Interface>>(std::move(factory));
    }
    add_entry(Interface::plugin_kind, factory_type_name<Interface>(), name, std::move(held));
  }

  const std::vector<Entry>& entries() const;

 private:
  void add_entry(const Kind& kind, std::string_view factory_type, std::string_view name,
                 std::shared_ptr<const void> factory);

  std::string plugin_;
  std::string file_;
  std::vector<Entry> entries_;
};

}  // namespace tessera::plugin
