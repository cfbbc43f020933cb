export module tessera.plugin_suite;

export import :suite;  // the checks of a plugin of each kind, in a process of its own
