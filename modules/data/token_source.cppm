export module tessera.data:token_source;

import tessera.base;

export namespace tessera::data {

/// The tokens of a run, one after the other. Each kind of data (text, files of token ids) is one;
/// who trains divides them into windows.
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

}  // namespace tessera::data
