export module tessera.plugin:host;

import tessera.base;
import :kind;
import :registrar;
import :search;
import :stamp;

export namespace tessera::plugin {

/// A file found by the search, and what gate one found out about it without running its code.
struct PluginFile {
  std::string file;
  std::optional<Stamp> stamp;         // when it could be read
  std::vector<std::string> refusals;  // none: it can be loaded
  bool loaded = false;
};

/// A plugin in use. All ranks must have the same.
struct LoadedPlugin {
  std::string name;
  std::string version;
  std::string digest;
  std::string file;
};

/// Finds plugins and loads the requested ones, by kind and name. Safe to call from several threads.
/// Libraries stay loaded when a Host is destroyed.
class Host {
 public:
  explicit Host(SearchOptions search = {});
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// The factory registered for `name`; loads the plugin that provides it if that has not happened
  /// yet. The reference stays valid as long as the Host. Throws Error (input): no plugin provides
  /// it (with the nearest name), the file that provides it is refused (with every reason), or two
  /// different files provide it (with both).
  template <Pluggable Interface>
  inline const FactoryOf<Interface>& find(std::string_view name) {
    declare_kind<Interface>();
    return *static_cast<const FactoryOf<Interface>*>(
        find_factory(Interface::plugin_kind.name, name));
  }

  /// Registers a factory of the program itself, without a plugin.
  template <Pluggable Interface>
  inline void add(std::string_view name, FactoryOf<Interface> factory) {
    declare_kind<Interface>();
    Registrar registrar("program", "the program itself");
    registrar.add<Interface>(name, std::move(factory));
    add_entries(registrar.entries());
  }

  /// Loads one file; it is registered completely or not at all. A file that is already loaded is
  /// ignored.
  /// Throws Error (input) with every reason when it is refused.
  void load(const std::string& path);

  /// All files found, in search order, usable or refused; loads nothing.
  std::vector<PluginFile> list() const;

  /// The names available for a kind, registered or found, sorted.
  std::vector<std::string> names(std::string_view kind) const;

  /// The loaded plugins, sorted by name.
  std::vector<LoadedPlugin> loaded() const;

  /// A hash over name, version and content of all loaded plugins. The order of loading does not
  /// matter.
  std::uint64_t loaded_hash() const;

 private:
  const void* find_factory(std::string_view kind, std::string_view name);
  void add_entries(const std::vector<Entry>& entries);

  struct State;
  std::unique_ptr<State> state_;
};

/// The Host of this process, never destroyed. `configure_host` sets where it searches, and must be
/// called before its first use.
Host& host();
void configure_host(SearchOptions search);

}  // namespace tessera::plugin
