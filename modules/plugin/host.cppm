export module tessera.plugin:host;

import tessera.base;
import :kind;
import :registrar;
import :search;
import :stamp;

export namespace tessera::plugin {

/// A file of the search and what gate one says of it; nothing of it has run.
struct Found {
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

/// Finds plugins and loads those that are asked for, by kind and name. Safe to call from several
/// threads. Libraries stay loaded when a Host ends.
class Host {
 public:
  explicit Host(SearchOptions search = {});
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// The factory registered for `name`; loads the plugin that provides it when none has been yet.
  /// The reference stays valid as long as the Host.
  /// Throws Error (input): nobody provides it (with the nearest name), the file that does is
  /// refused (with every reason), or two different files do (with both).
  template <Pluggable Interface>
  inline const FactoryOf<Interface>& find(std::string_view name) {
    declare_kind<Interface>();
    return *static_cast<const FactoryOf<Interface>*>(
        find_factory(Interface::plugin_kind.name, name));
  }

  /// Registers a factory of the program's own, without a plugin.
  template <Pluggable Interface>
  inline void add(std::string_view name, FactoryOf<Interface> factory) {
    declare_kind<Interface>();
    Registrar registrar("program", "the program itself");
    registrar.add<Interface>(name, std::move(factory));
    add_entries(registrar.entries());
  }

  /// Loads one file, all or nothing; a file that is loaded already is left as it is.
  /// Throws Error (input) with every reason when it is refused.
  void load(const std::string& path);

  /// All files of the search in its order, usable or refused; loads nothing.
  std::vector<Found> list() const;

  /// The names that can be had for a kind, registered or found, sorted.
  std::vector<std::string> names(std::string_view kind) const;

  /// What has been loaded, sorted by name.
  std::vector<LoadedPlugin> loaded() const;

  /// A hash over name, version and content of all that is loaded, in whatever order that happened.
  std::uint64_t loaded_hash() const;

 private:
  const void* find_factory(std::string_view kind, std::string_view name);
  void add_entries(const std::vector<Entry>& entries);

  struct State;
  std::unique_ptr<State> state_;
};

/// The Host of this process; `configure_host` says where it searches and must come before the first
/// use. Never destroyed.
Host& host();
void configure_host(SearchOptions search);

}  // namespace tessera::plugin
