module;
#include <nlohmann/json_fwd.hpp>
module tessera.app.first_day:results;

import tessera.base;
import tessera.app.base;

// The file of results: a line of JSON for the pack, then one for each item as it ends. A later line
// of the same item replaces the one before; a line that was cut off is ignored.

namespace tessera::app::first_day {

/// How an item of a part ended.
struct Result {
  std::string part;
  std::string item;
  std::string status;        // passed, failed, late, absent (what it needs is not there)
  double seconds = 0;        // it took
  std::string problem;       // why it has not passed; one line
  std::string facts = "{}";  // what it has found out, a JSON object

  bool is_done() const { return status == "passed" || status == "absent"; }
};

/// Results of one pack on one machine.
struct Results {
  std::string pack;           // the pack's line, a JSON object
  std::vector<Result> items;  // the last one of each, in the order of the first ones
  const Result* find(const std::string& part, const std::string& item) const;
};

/// Reads a file of results. Error (input): it cannot be read; it is not one, or of another version
/// of its format.
Results read_results(const std::string& path);

/// A file of results that grows.
class ResultFile {
 public:
  /// Begins the file, or continues it and drops what was replaced. Error (input): see
  /// read_results; it is of another pack; it cannot be written.
  ResultFile(std::string path, const std::string& pack);
  /// Appends a line at once, also from a child process. Error (input): the disk is full.
  void add(const Result& result);
  /// What is in the file now.
  Results results() const { return read_results(path_); }
  const std::string& path() const { return path_; }
  /// The file holds no more than so many bytes; texts are cut short before that.
  static constexpr std::size_t most_bytes = 1 << 20;

 private:
  std::string path_;
};

}  // namespace tessera::app::first_day
