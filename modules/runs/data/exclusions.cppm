export module tessera.runs:exclusions;

import tessera.base;
import tessera.data;

// Rows that a run leaves out.

export namespace tessera::runs {

/// Rows that are left out from a step on, besides those that were left out before.
struct ExcludedRows {
  std::int64_t from = 0;               // steps that were done
  std::vector<std::string> rows = {};  // their places, "/data/a.jsonl:17"
};
/// All of a run, in the order of its steps.
using Exclusions = std::vector<ExcludedRows>;

/// Where a run continues.
struct ContinuedRows {
  std::int64_t step = 0;   // steps that were done
  Exclusions before = {};  // that its checkpoint has
};

/// The name of the text in checkpoints that has them.
inline constexpr const char* exclusions_text = "excluded";

/// As a text for a checkpoint, and the other way round. Error (input) that begins with `where`: it
/// is not such a text.
std::string to_json(const Exclusions& all);
Exclusions exclusions_of(const std::string& text, const std::string& where);
/// How many rows are left out at the end.
std::int64_t count_of(const Exclusions& all);

/// The places in a file of data.exclude; blank lines and those that begin with '#' are none. A file
/// that is not found as it is named is looked for beside this one. Errors (input), with the line:
/// it is not a place; a place is there twice.
std::vector<data::RecordPlace> read_row_places(const std::string& file);

}  // namespace tessera::runs
