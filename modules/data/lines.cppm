module tessera.data:lines;

import tessera.base;
import :data_file;
import :record_forms;

// The lines of large files, and what is wrong with them.

namespace tessera::data {

/// A line without its end.
struct Line {
  std::int64_t number = 0;  // from 1
  std::size_t offset = 0;   // in the file
  std::string_view text;
};

/// Reads a file's lines in blocks, so that no file must fit in memory.
class LineReader {
 public:
  /// `longest`: bytes of a line; longer ones are faults. `block`: bytes of a block.
  LineReader(const DataFile& file, std::size_t longest, std::size_t block = std::size_t{4} << 20);
  /// The next lines, valid until the next call; false: there are no more. `faults` gets the numbers
  /// and bytes of lines that are too long, which are left out.
  bool next(std::vector<Line>& lines, std::vector<std::pair<std::int64_t, std::size_t>>& too_long);

 private:
  const DataFile& file_;
  DataFile::Handle handle_;
  std::size_t longest_;
  std::size_t block_bytes_;
  std::string block_;
  std::size_t used_ = 0;      // bytes of the block that were given out
  std::size_t position_ = 0;  // of the block's end in the file
  std::int64_t number_ = 0;   // of the last line
};

/// Collects faults of files, to report them at once.
class Faults {
 public:
  /// `skips_bad`: records with faults are counted, and are no faults.
  explicit Faults(bool skips_bad) : skips_bad_(skips_bad) {}

  void add(const std::string& file, std::int64_t line, const std::string& text);
  /// Of a record.
  void add_bad(const std::string& file, std::int64_t line, const std::string& text);
  /// Of lines that are too long: their numbers and bytes.
  void add_too_long(const std::string& file,
                    std::span<const std::pair<std::int64_t, std::size_t>> lines);
  /// Records that are left out, and the first fault of one, with file and line.
  std::int64_t bad() const { return bad_; }
  const std::string& first_bad() const { return first_bad_; }
  /// Error (input) that lists the first of them, each with file and line, and says how many there
  /// are.
  void throw_if_any() const;

 private:
  bool skips_bad_;
  std::int64_t count_ = 0;
  std::vector<std::string> first_;
  std::int64_t bad_ = 0;
  std::string first_bad_;
};

/// Calls f(i) for each i below count, on all cores. The first exception is thrown on.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& f);

/// The columns of a source as a part of the hash of what it reads.
std::string columns_text(const RecordForms& forms);

/// The hash of whole files, in their order; it is kept for large files (DataIndex).
std::string hash_of(std::span<const DataFile> files, const std::string& more);

/// The longest line of a JSONL file, in bytes.
inline constexpr std::size_t longest_line = std::size_t{32} << 20;

}  // namespace tessera::data
