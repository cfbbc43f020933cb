// Plugins: finding, checking and loading shared libraries. This module knows no kind of plugin:
// each module above declares the kinds that it supports.
export module tessera.plugin;

export import :kind;       // Kind, declare_kind: which kinds of plugins there are
export import :registrar;  // Registrar: takes what a plugin offers
export import :stamp;      // Stamp: what gate one reads without loading
export import :file;       // LibraryFile: a library that was read, and what is wrong with it
export import :search;     // search_libraries: where plugins are searched
export import :load;       // gate two: dlopen and register
export import :data_file;  // DataFileFormat: plugins that are files of data
export import :functions;  // FunctionLibrary: generated code
export import :host;       // Host: list, find, loaded
export import :check;      // check_library: every refusal, found out in a child process
