export module tessera.sources:record_source;

import tessera.base;
import tessera.plugin;

// Files whose records are not lines of JSON.

export namespace tessera::sources {

/// Bytes that a record may have, as JSON.
inline constexpr std::size_t longest_record = std::size_t{32} << 20;

/// The records of one file, one after the other, from the first to the last. One thread uses it.
class RecordStream {
 public:
  virtual ~RecordStream();

  /// Appends the next record to `to`: an object of JSON in UTF-8, in one line and without its end,
  /// of at most longest_record bytes (tessera/record_text.hpp writes one). False: there is no
  /// further record. Errors (input) that begin with the file's path and say where in it: it is
  /// damaged, ends too early, or has changed.
  virtual bool next(std::string& to) = 0;
  /// The share of the file that was read, 0 to 1, for who waits.
  virtual double done() const;
  /// What the file has and its records have not, for people: "the column 'photo' (binary)".
  virtual std::vector<std::string> left_out() const;
};

/// The plugin kind "source": it reads the files whose names end in '.' and the name of the plugin's
/// offer, in small letters. What it gives of a file depends on the file's content alone. Each file
/// is read once, from its beginning to its end; the host keeps the records
/// (docs/compressed-data.md), so order, mixing, packing and resuming are the host's.
class RecordSource {
 public:
  static constexpr plugin::Kind plugin_kind{"source"};

  virtual ~RecordSource();
  /// `needed`: names that members of records have. Errors (input) that begin with the path: the
  /// file cannot be read, or is not of this format; a column with one of these names is of a type
  /// that no record can have (others of such a type are left out).
  virtual std::unique_ptr<RecordStream> open(const std::string& path,
                                             std::span<const std::string> needed) const = 0;
  /// The bytes of a small file of the format, with some records, for the tests of `tessera plugin
  /// check`. Empty: they do without.
  virtual std::string sample() const;
};

/// The name of the source that reads a file: the ending of its name in small letters where a plugin
/// provides a source of that name; empty: the file is read as it is. Which sources there are is
/// found out once: a program adds its own ones to the host before it asks for a file's.
std::string source_of(std::string_view path);
/// Why a file cannot be read whose ending belongs to a plugin of Tessera that this machine does not
/// have, and how to get it. Empty: no such plugin reads it, or it is there.
std::string missing_source(std::string_view path);

/// The source of this name. Errors (input): no plugin provides it; the plugin is refused.
std::unique_ptr<RecordSource> load_source(std::string_view name);
/// Equal as long as the plugin that provides a source is the same.
std::string source_version(std::string_view name);

/// The records of a file as lines of JSON, in pieces of any size. What a source does wrong is an
/// error that names the file: a record with an end of a line, or one that is too long.
class RecordLines {
 public:
  /// Errors: those of load_source and of RecordSource::open.
  RecordLines(std::string path, std::string_view source, std::span<const std::string> needed = {});
  /// Fills `out` from its beginning on; returns how many bytes there were: fewer than `out` has
  /// only at the end. Errors: those of RecordStream::next.
  std::size_t read(std::span<std::byte> out);
  double done() const;
  /// Records that were begun.
  std::int64_t records() const { return records_; }

 private:
  bool next();

  std::string path_;
  std::unique_ptr<RecordSource> source_;
  std::unique_ptr<RecordStream> stream_;
  std::string line_;
  std::size_t used_ = 0;
  std::int64_t records_ = 0;
};

}  // namespace tessera::sources
