// Plugins: finding, checking and loading shared libraries. It knows no kind; each module above
// declares the kinds that it offers.
export module tessera.plugin;

export import :kind;       // Kind, declare_kind: what can be plugged in
export import :registrar;  // Registrar: what a plugin fills
export import :stamp;      // Stamp: what gate one reads without loading
export import :file;       // LibraryFile: an opened file that only its owner can change
export import :search;     // where plugins are looked for
export import :load;       // gate two: dlopen and register
export import :host;       // Host: list, find, loaded
export import :check;      // check_library: all that would be refused, tried in a child process
