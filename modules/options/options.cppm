// Options: the keys of a config that a plugin's object reads.
export module tessera.options;

export import :option_values;   // Range, WordField: what a number or a word may be
export import :plugin_options;  // PluginOptions: typed reads with defaults and exact errors
export import :option_table;    // OptionTable: a structure's fields as options, with documentation
