export module tessera.app.config:check;

import tessera.app.base;
import :problems;
import :run_config;

// Checks between keys.

export namespace tessera::app {

/// The p of a norm: "2" is 2, "inf" infinity. Nothing where the text is not one.
std::optional<double> norm_order(const std::string& text);

/// "4GiB" and "1.5 MiB" in bytes. Nothing where the text is not an amount of memory, or is none.
std::optional<std::int64_t> bytes_of_text(const std::string& text);

/// Adds the problems between keys. A check that needs a key in `unread` is skipped.
void check_config(const Config& config, const std::set<std::string>& unread, Problems& problems);

}  // namespace tessera::app
