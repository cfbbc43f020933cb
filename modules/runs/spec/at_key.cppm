export module tessera.runs:at_key;

import tessera.base;
import :spec;

export namespace tessera::runs {

/// In a handler of `error`: throws it again. An Error (input) without a place gets that of the key,
/// and names the key once.
[[noreturn]] void fail_at_key(const RunSpec& config, const std::string& key, const Error& error);

/// Calls `f`, with fail_at_key for its errors.
template <class F>
decltype(auto) at_key(const RunSpec& config, const std::string& key, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    fail_at_key(config, key, error);
  }
}

}  // namespace tessera::runs
