export module tessera.data:tokens;

import tessera.base;
import :data_file;
import :npy;
import :token_source;

export namespace tessera::data {

/// Tokens that are read from their files when they are needed.
class Tokens final : public TokenSource {
 public:
  /// Every byte of the files is a token.
  static Tokens from_bytes(std::span<const std::string> files);
  /// Token ids; reading one that is not below `vocab` is an Error (input).
  static Tokens from_npy(std::span<const std::string> files, std::int64_t vocab);

  std::int64_t size() const override { return size_; }
  std::size_t files() const override { return segments_.size(); }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override;
  std::vector<TokenRange> places(std::int64_t begin, std::int64_t count) const override;
  void check_all() const override;
  std::string content_hash() const override;

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
  struct OpenSegment {
    std::mutex mutex;
    const Segment* segment = nullptr;
    std::optional<DataFile::Handle> handle;
  };

  std::vector<Segment> segments_;
  std::unique_ptr<OpenSegment> open_ = std::make_unique<OpenSegment>();
  std::int64_t size_ = 0;
  std::int64_t vocab_ = 256;
};

}  // namespace tessera::data
