module tessera.data:data_index;

import tessera.base;
import :data_file;

// What reading all of large data has found, kept for the next start.

namespace tessera::data {

/// Something that was found by reading files whole (where records are, how many tokens they have),
/// in the cache of data. It is found again as long as the files and this library are the same: by
/// their sizes and times, among which the system's own of the last change, which no program can
/// set. Nothing is kept of files that have less than 4 MiB together, nor where there is no cache.
class DataIndex {
 public:
  /// `how`: what else decides what is found; empty: nothing is kept.
  DataIndex(std::span<const DataFile> files, std::string_view how);

  /// Nothing: none was kept, or it is damaged.
  std::optional<std::string> find() const;
  void keep(std::string_view bytes) const;

 private:
  std::string key_;  // empty: nothing is kept
};

/// Values and lists of them as bytes.
class IndexWriter {
 public:
  template <class T>
  void number(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(std::string_view text);
  template <class T>
  void list(const std::vector<T>& values) {
    number(std::uint64_t{values.size()});
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void texts(const std::vector<std::string>& texts);
  void counts(const std::map<std::string, std::int64_t>& counts);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads what an IndexWriter of the same library wrote.
class IndexReader {
 public:
  explicit IndexReader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  void number(T& value) {
    take(&value, sizeof(T));
  }
  void text(std::string& text);
  template <class T>
  void list(std::vector<T>& values) {
    std::uint64_t count = 0;
    number(count);
    require(count <= rest_.size() / sizeof(T), "index: it ends too early");
    values.resize(count);
    take(values.data(), count * sizeof(T));
  }
  void texts(std::vector<std::string>& texts);
  void counts(std::map<std::string, std::int64_t>& counts);

 private:
  void take(void* to, std::size_t bytes);
  std::string_view rest_;
};

}  // namespace tessera::data
