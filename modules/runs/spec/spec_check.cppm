export module tessera.runs:check;

import tessera.base;
import :problems;
import :spec;

// Checks between keys.

export namespace tessera::runs {

/// The p of a norm: "2" is 2, "inf" infinity. Nothing where the text is not one.
std::optional<double> norm_order(const std::string& text);

/// "4GiB" and "1.5 MiB" in bytes. Nothing where the text is not an amount of memory, or is none.
std::optional<std::int64_t> bytes_of_text(const std::string& text);

/// Adds the problems between keys. A check that needs a key in `unread` is skipped.
void check_config(const RunSpec& config, const std::set<std::string>& unread, Problems& problems);

/// A program's own description, complete: sizes that it leaves out have the initial values of the
/// family, and `given` has the fields that are not as they were. Errors (input): one that lists
/// every field with a value that a config could not have, and all problems between fields.
RunSpec checked(RunSpec spec);

}  // namespace tessera::runs
