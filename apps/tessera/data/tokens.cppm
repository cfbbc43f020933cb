export module tessera.app.data:tokens;

import tessera.app.base;
import :data_file;
import :npy;

// All tokens of a run, one after the other, read from their files when they are needed.

export namespace tessera::app {

class Tokens {
 public:
  /// Every byte of the files is a token.
  static Tokens from_bytes(std::span<const std::filesystem::path> files);
  /// Token ids; reading one that is not below `vocab` is an Error (input).
  static Tokens from_npy(std::span<const std::string> files, std::int64_t vocab);

  std::int64_t size() const { return size_; }
  std::size_t files() const { return segments_.size(); }
  /// Writes tokens [begin, begin + out.size()) to `out`. Error (input) when a file has changed
  /// since this object was made.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  /// Reads every token once, so that a wrong id is found before the run starts.
  void check_all() const;
  /// The hash of all tokens as they are stored. How text is cut into files does not matter.
  std::string content_hash() const;

 private:
  struct Segment {
    DataFile file;
    TokenType type;
    std::size_t offset;  // of the first token in the file, in bytes
    std::int64_t begin;  // index of the first token among all
    std::int64_t count;
  };
  void append(DataFile file, TokenType type, std::size_t offset, std::int64_t count);

  /// Bytes [offset, offset + out.size()) of a segment's file.
  void read_bytes(const Segment& segment, std::size_t offset, std::span<std::byte> out) const;

  /// The file that was read last stays open. Ranks that are threads share it.
  struct Open {
    std::mutex mutex;
    const Segment* segment = nullptr;
    std::optional<DataFile::Handle> handle;
  };

  std::vector<Segment> segments_;
  std::unique_ptr<Open> open_ = std::make_unique<Open>();
  std::int64_t size_ = 0;
  std::int64_t vocab_ = 256;
};

}  // namespace tessera::app
