// Options: the keys of a config that a plugin's object reads.
export module tessera.options;

export import :plugin_options;  // PluginOptions: typed reads with defaults and exact errors
