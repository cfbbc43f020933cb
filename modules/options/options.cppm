// What a config says to a plugin's object.
export module tessera.options;

export import :plugin_options;  // PluginOptions: typed reads with defaults and exact errors
