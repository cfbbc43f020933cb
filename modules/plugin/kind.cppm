export module tessera.plugin:kind;

import tessera.base;

export namespace tessera::plugin {

/// A kind of plugin: its name, and the version of its interface. Host and plugin must have the
/// same. Tessera's own interfaces are in the fingerprint, so their version stays 1; a program that
/// declares a kind of its own raises it when the interface changes.
struct Kind {
  std::string_view name;
  int version = 1;
};

/// An interface for plugins declares its kind with
///   static constexpr plugin::Kind plugin_kind{"style"};
/// and can declare how its objects are created with
///   using Factory = std::function<std::unique_ptr<ParallelStyle>(const Options&)>;
template <class Interface>
concept Pluggable = requires {
  { Interface::plugin_kind } -> std::convertible_to<Kind>;
};

/// The type of functions that create objects of an interface: its own Factory, or one without
/// arguments.
template <class Interface>
struct FactoryType {
  using type = std::function<std::unique_ptr<Interface>()>;
};
template <class Interface>
  requires requires { typename Interface::Factory; }
struct FactoryType<Interface> {
  using type = typename Interface::Factory;
};
/// A plugin's registration for an interface.
template <class Interface>
using FactoryOf = typename FactoryType<Interface>::type;

/// The name of the factory's type, the same in every library made by one compiler (and without
/// RTTI).
template <class Interface>
inline std::string_view factory_type_name() {
  return __PRETTY_FUNCTION__;
}

/// A kind as the host knows it.
struct DeclaredKind {
  std::string name;
  int version = 1;
  std::string factory_type;
};

/// Makes a kind known to every Host of the process. A second call with the same arguments changes
/// nothing; the same name with another interface or version is an error (run).
void declare_kind(const Kind& kind, std::string_view factory_type);

/// Declares an interface's kind. A module declares its kinds in a source:
///   const bool declared = plugin::declare_kind<ParallelStyle>();
template <Pluggable Interface>
inline bool declare_kind() {
  declare_kind(Interface::plugin_kind, factory_type_name<Interface>());
  return true;
}

/// All declared kinds, sorted by name.
std::vector<DeclaredKind> declared_kinds();

}  // namespace tessera::plugin
