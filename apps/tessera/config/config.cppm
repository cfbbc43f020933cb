export module tessera.app.config;

export import :run_config;    // the config of a run as plain values, and reading it
export import :problems;      // places in a config, and all that is wrong with it
export import :at_key;        // errors with the place of a key
export import :keys;          // all keys: ranges, choices, documentation
export import :data_sources;  // the sources of the section [data]
export import :check;         // checks between keys
