export module tessera.app.config;

export import :load;  // a run's description from TOML and overrides, and as TOML
