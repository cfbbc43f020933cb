export module tessera.plugin:search;

import tessera.base;

export namespace tessera::plugin {

/// Where to search, in addition to the environment and the standard folders.
struct SearchOptions {
  std::vector<std::string> paths;  // files or folders: --plugin and the config's [plugins] paths
  bool environment = true;         // TESSERA_PLUGIN_PATH
  bool standard_places = true;     // the user's folder and the installed folder
};

/// A plugin's file found by the search, or a named path that cannot be used.
struct Candidate {
  std::string path;
  std::string refusal;  // "" for a file
};

/// All candidates in search order: named paths, TESSERA_PLUGIN_PATH (absolute entries,
/// separated by ':'), $XDG_DATA_HOME or ~/.local/share + /tessera/plugins, lib/tessera/plugins
/// next to libtessera.so. Of a folder: its *.so files and those of data
/// (DataFileFormat), sorted by name. The working directory is
/// never searched.
std::vector<Candidate> search_libraries(const SearchOptions& options);

/// The folder of the plugins that are installed with this library; "" when it is unknown.
std::string installed_plugin_folder();
/// The user's own folder for plugins; "" without a home folder.
std::string user_plugin_folder();

}  // namespace tessera::plugin
