// Folders of the user's with files that can be made again, so that a second run does not make them.
export module tessera.cache;

export import :cache_folder;  // a folder that only this user can change
export import :cached_code;   // use_cached_code: code that is found, or made
