// Files of generated code that are kept in a folder of the user's, so that a second run compiles
// nothing.
export module tessera.code_cache;

export import :cached_code;  // use_cached_code: code that is found, or made
