export module tessera.plugin:search;

import tessera.base;

export namespace tessera::plugin {

/// Where to look, before the environment and the standard places.
struct SearchOptions {
  std::vector<std::string> paths;  // files or folders: --plugin and the config's [plugins] paths
  bool environment = true;         // TESSERA_PLUGIN_PATH
  bool standard_places = true;     // the user's data folder and the installed folder
};

/// A library file found by the search, or a place that was named and cannot be used.
struct Candidate {
  std::string path;
  std::string refusal;  // "" for a file to look at
};

/// All candidates in the order of search: named paths, TESSERA_PLUGIN_PATH (absolute entries,
/// separated by ':'), $XDG_DATA_HOME or ~/.local/share + /tessera/plugins, lib/tessera/plugins
/// beside libtessera.so. Of a folder: its *.so by name. The working directory is never searched.
std::vector<Candidate> search_libraries(const SearchOptions& options);

/// The folder of the plugins that are installed with this library; "" when it cannot be told.
std::string installed_plugin_folder();
/// The user's own folder for plugins; "" without a home.
std::string user_plugin_folder();

}  // namespace tessera::plugin
