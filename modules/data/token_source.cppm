export module tessera.data:token_source;

import tessera.base;

export namespace tessera::data {

/// Where something is in the files of a run, for people: "chats.jsonl:17".
struct RecordPlace {
  std::string file;
  /// The line of a record, from 1; the byte of a text's token; the number of a stored token id.
  std::int64_t number = 0;
  std::int64_t token = 0;  // of the text that begins there, from 0
};
/// "chats.jsonl:17", and "corpus.txt:65536+300" of a token that is not the first one there.
std::string to_string(const RecordPlace& place);
/// The other way round. Error (input): it does not end with a colon and a number.
RecordPlace parse_record_place(const std::string& text);

/// Tokens that follow each other in one file.
struct TokenRange {
  RecordPlace place = {};
  std::int64_t begin = 0;  // [begin, end) of those that were asked for
  std::int64_t end = 0;
  bool counts = false;  // place.number counts tokens: the next token has the next number
};

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
  /// Where tokens [begin, begin + count) are. Error (input): a file has changed.
  virtual std::vector<TokenRange> places(std::int64_t begin, std::int64_t count) const = 0;
  /// Reads every token once, so that a wrong id is found before the run starts.
  virtual void check_all() const = 0;
  /// The hash of all tokens as they are stored. How text is cut into files does not matter.
  virtual std::string content_hash() const = 0;
};

}  // namespace tessera::data
