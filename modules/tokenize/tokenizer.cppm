export module tessera.tokenize:tokenizer;

import tessera.base;
import tessera.options;
import tessera.plugin;

export namespace tessera::tokenize {

/// The number of a token.
using TokenId = std::int32_t;

/// A part of a text, in bytes.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const ByteRange& other) const;
};

/// Options of encoding a text.
struct EncodeOptions {
  /// Adds what the tokenizer adds to every text: a token for its beginning or its end.
  bool add_special = true;
  /// Special tokens that are written in the text become these tokens. Texts of users must not be
  /// able to write them: false.
  bool parse_special = true;
};

/// A text as tokens.
struct Encoding {
  std::vector<TokenId> ids;
  /// The bytes of the text that each token stands for, as many as there are ids. A token that was
  /// added has an empty range. White space belongs to the token that it is a part of.
  std::vector<ByteRange> offsets;
};

/// Tokens with a meaning that models and programs rely on.
struct SpecialTokens {
  std::optional<TokenId> bos = std::nullopt;
  std::optional<TokenId> eos = std::nullopt;
  std::optional<TokenId> pad = std::nullopt;
  std::optional<TokenId> unknown = std::nullopt;
  /// What ends a generated text: eos, and what generation_config.json lists besides.
  std::vector<TokenId> stop = {};
};

/// The plugin kind "tokenizer": between texts and token ids. Objects are constant, and several
/// threads may use one. Texts are UTF-8; what is not valid in them is treated as U+FFFD, one for
/// each maximal subpart, as Python's errors="replace" does, unless a tokenizer has tokens for all
/// bytes and no other reading ("bytes").
class Tokenizer {
 public:
  static constexpr plugin::Kind plugin_kind{"tokenizer"};
  /// `path` is the file or folder that it is made from; empty where it needs none.
  using Factory =
      std::function<std::unique_ptr<Tokenizer>(const std::string& path, PluginOptions& options)>;

  virtual ~Tokenizer();

  /// The highest id + 1; ids below it may be unused.
  virtual std::int64_t vocab_size() const = 0;
  /// The id of a token as its file writes it ("Ġthe"); nothing where there is none.
  virtual std::optional<TokenId> id(std::string_view token) const = 0;
  /// Nothing where no token has this id.
  virtual std::optional<std::string> token(TokenId id) const = 0;
  /// Whether decoding with skip_special leaves it out. The default: none is.
  virtual bool is_special(TokenId id) const;
  /// What the tokenizer's own file says. The default: nothing.
  virtual SpecialTokens special_tokens() const;

  /// Appends the tokens of a text; and where `offsets` is not null, their bytes. Error (input): the
  /// text is larger than 4 GiB, or has something that the vocabulary cannot express.
  virtual void encode_to(std::string_view text, const EncodeOptions& options,
                         std::vector<TokenId>& ids, std::vector<ByteRange>* offsets) const = 0;
  /// Valid UTF-8, except for the kind "bytes". Error (input): an id has no token.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special = false) const = 0;

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_with_offsets(std::string_view text, const EncodeOptions& options = {}) const;
};

/// The tokens of many texts, by several threads (0: one for each core of this process).
std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts,
                                             const EncodeOptions& options = {}, int threads = 0);

/// Decodes tokens one by one, so that the parts together are the decoded text. A part never ends
/// within a character: tokens that are the beginning of one are kept until it is complete, and
/// tokens of single bytes ("<0x0A>") until another token ends their run, because one wrong byte
/// makes all of a run U+FFFD.
class StreamDecoder {
 public:
  /// The tokenizer must live as long as the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  /// Begins a text that follows these tokens, which are not given: how a token is written may
  /// depend on those before it, but bytes do not continue a character of theirs.
  void start_after(std::vector<TokenId> ids);
  /// The text that this token completes; empty where it completes none.
  std::string add(TokenId id);
  /// What is left: U+FFFD for characters that were not completed.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool is_byte(TokenId id) const;

  std::vector<TokenId> ids_;  // those that the next text depends on
  std::size_t given_ = 0;     // of these, how many have been given
  bool after_other_ = false;  // all of them are of another text
};

}  // namespace tessera::tokenize
