export module tessera.cache:cached_code;

import tessera.base;

export namespace tessera {

/// What became of an attempt to make code.
struct CompileOutcome {
  std::string missing = {};  // why there is none; "": it was made
  bool late = false;         // the limit of waiting is over: the process waits for no other code
};

/// Code that the cache may have.
struct CachedCode {
  std::string key = {};        // all that the code depends on
  std::string extension = {};  // of its file: "so", "cubin"
  bool is_executed = false;    // by the dynamic linker, from its file
  std::string otherwise = {};  // what the caller does without it: "the executor is planned"
  std::function<CompileOutcome(const std::string& file)> make =
      {};  // in a fresh folder, which goes away
  /// Gets the file while nobody else changes it. "", or why the code is none.
  std::function<std::string(const std::string& file)> use = {};
};

/// Uses code that is in the cache, or is made now. Of several processes that need it at once, one
/// makes it, and the others wait. The cache is TESSERA_KERNEL_CACHE or ~/.cache/tessera/kernels, is
/// this user's alone, and keeps the 200 files that were used last; a second hash finds damage. "",
/// or why there is no code: the cache cannot be used, `make` or `use` says so, or another process
/// was waited for in vain, now or before. Errors: others could change the folder; those of `make`
/// and `use`.
std::string use_cached_code(const CachedCode& code);

}  // namespace tessera
