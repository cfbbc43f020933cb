// What each operator accepts, as record.txt has it: a rule may accept more one day, and never less
// unnoticed.
#pragma once
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera::testing {

/// The placements of one type's samples that the operator accepts and refuses.
struct Counts {
  std::size_t accepted = 0;
  std::size_t refused = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};

struct RecordedOperator {
  std::map<std::string, Counts> types;  // by the name of the floating type; absent: not taken
  std::set<std::string> narrow;         // as Verdict::narrow, of f64
};

/// By operator.
using Record = std::map<std::string, RecordedOperator>;

std::string to_text(const Record& record);
/// Error: a line that is none of a record's.
Record record_of(const std::string& text);

/// What a change of the code has changed. `types`: those that `found` is about.
struct RecordDifference {
  std::vector<std::string> failures;  // fewer accepted, or what the record does not have
  std::vector<std::string> gains;     // more accepted, or no longer narrow
};
RecordDifference compare(const Record& recorded, const Record& found,
                         const std::set<std::string>& types);

/// `found` in the place of what `recorded` has about `types`; operators that are not found go.
Record updated(const Record& recorded, const Record& found, const std::set<std::string>& types);

}  // namespace tessera::testing
