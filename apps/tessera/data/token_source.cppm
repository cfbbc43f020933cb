export module tessera.app.data:token_source;

import tessera.app.base;
import tessera.app.config;

export namespace tessera::app {

/// All tokens of a run, one after the other. Each kind of data (text, files of token ids) is one;
/// Dataset divides them into windows.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  virtual std::size_t files() const = 0;
  /// Writes tokens [begin, begin + out.size()) to `out`. Error (input) when a file has changed
  /// since the source was opened.
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;
  /// Reads every token once, so that a wrong id is found before the run starts.
  virtual void check_all() const = 0;
  /// The hash of all tokens as they are stored. How text is cut into files does not matter.
  virtual std::string content_hash() const = 0;
};

/// A source, and what is below the named folders and is not in it (TextFiles::left_out).
struct OpenedSource {
  std::unique_ptr<const TokenSource> tokens;
  std::string left_out = {};
};
/// Opens the source that the section [data] names. `vocab`: the model's number of token ids
/// (ready-made tokens only). Error (input): a file is missing, unreadable or of another kind.
OpenedSource open_source(const DataConfig& data, std::int64_t vocab);

/// The tokenizer's number of symbols; 0 for ready-made tokens.
std::int64_t tokenizer_vocab(const DataConfig& data);
/// The key that names the source.
std::string source_key(const DataConfig& data);

}  // namespace tessera::app
