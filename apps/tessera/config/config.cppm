export module tessera.app.config;

export import :load_config;  // a run's description from TOML and overrides, and as TOML
