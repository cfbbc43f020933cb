export module tessera.runs:event_file;

import tessera.base;
import :metrics;

// TensorBoard's event files: records of Protocol Buffers with checksums.

export namespace tessera::runs {

/// A new event file of a run in a folder, with the numbers of the metrics file under their names
/// there. A continued run adds a file, which tells readers to leave out later steps of those
/// before.
class EventFile {
 public:
  /// Makes the folder and the file. `resumed_step`: the step after which a run continues; 0: it
  /// begins. Error (input): the file cannot be written.
  EventFile(const std::filesystem::path& folder, std::int64_t resumed_step);
  EventFile(EventFile&&) = delete;
  ~EventFile();
  /// Appends the numbers of a step; those that are not finite are left out. Error: they cannot be
  /// written now, and are with the next ones.
  void write(const StepMetrics& metrics);

 private:
  void add(const std::string& event);
  void flush();

  std::filesystem::path path_;
  int file_ = -1;
  std::string pending_;  // records that are not written
};

/// CRC-32C (Castagnoli), as in the records of event files.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace tessera::runs
