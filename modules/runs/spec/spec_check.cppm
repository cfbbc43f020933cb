export module tessera.runs:spec_check;

import tessera.base;
import :problems;
import :spec;

// Checks between keys.

export namespace tessera::runs {

/// The p of a norm: "2" is 2, "inf" infinity. Nothing where the text is not one.
std::optional<double> norm_order(const std::string& text);

/// "4GiB" and "1.5 MiB" in bytes. Nothing where the text is not an amount of memory, or is none.
std::optional<std::int64_t> bytes_of_text(const std::string& text);

/// What a description leaves to a program's own task (Task), besides model, rows and loss.
struct OwnTask {
  bool optimizer = false;
};

/// Whether a key has no meaning beside a program's own task.
bool is_of_own_task(const std::string& path, bool own_optimizer);

/// Adds the problems between keys. A check that needs a key in `unread` is skipped. `own`: of a
/// program's own task.
void check_config(const RunSpec& config, const std::set<std::string>& unread, Problems& problems,
                  const std::optional<OwnTask>& own = {});

/// A program's own description, complete: sizes that it leaves out have the initial values of the
/// family, and `given` has the fields that are not as they were. Errors (input): one that lists
/// every field with a value that a config could not have, and all problems between fields.
RunSpec checked(RunSpec spec, const std::optional<OwnTask>& own = {});

}  // namespace tessera::runs
