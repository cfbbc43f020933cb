export module tessera.data:text_encoding;

import tessera.base;
import tessera.tokenize;

export namespace tessera::data {

/// What a special token is that is written in a text, a prompt or a completion.
enum class SpecialText : std::uint8_t {
  read,     // the special token, as in transformers
  letters,  // its letters
  refuse,   // an error
};

/// Texts as tokens, without conversations, in which only the template writes special tokens. It is
/// the one rule of training, generation, evaluation and serving. Constant, and several threads may
/// use one.
class TextEncoder {
 public:
  explicit TextEncoder(tokenize::OpenedTokenizer tokenizer,
                       SpecialText special = SpecialText::read);

  /// Which ends of a text its part has.
  struct Ends {
    bool begins = true;
    bool ends = true;
  };
  /// Appends the tokens of a text or of a part of it: at its beginning what the tokenizer adds
  /// there, at its end what ends texts, unless the text itself is written so. `offsets` may be
  /// null. Errors (input), without a place: a special token where these are refused; two tokens
  /// for the beginning.
  void encode_to(std::string_view text, const Ends& ends, std::vector<tokenize::TokenId>& ids,
                 std::vector<tokenize::ByteRange>* offsets = nullptr) const;
  /// The tokens of a text that the model continues: with its beginning, without an end. Errors
  /// (input): those.
  std::vector<tokenize::TokenId> prompt(std::string_view text) const;
  /// A place at which a text may be divided, at most `at`: not within a special token.
  std::size_t cut_before_special(std::string_view text, std::size_t at) const;

  const tokenize::OpenedTokenizer& tokenizer() const { return tokenizer_; }
  SpecialText special() const { return special_; }
  /// What is added before and behind each text; behind it also the token that ends texts, where
  /// there is one.
  std::span<const tokenize::TokenId> prefix() const { return prefix_; }
  std::span<const tokenize::TokenId> suffix() const { return suffix_; }
  /// The first special token that a text contains.
  std::optional<tokenize::TokenId> special_in(std::string_view text) const;

 private:
  tokenize::OpenedTokenizer tokenizer_;
  SpecialText special_;
  std::vector<tokenize::TokenId> prefix_;
  std::vector<tokenize::TokenId> suffix_;
  std::vector<std::string> special_tokens_;
  std::string special_beginnings_;  // the first bytes of special tokens
};

/// Removes tokens before those that the tokenizer has added at the text's end, so that `longest`
/// are left. Returns whether there were more. Error (input): more than `longest` are added.
bool shorten(tokenize::Encoding& text, std::int64_t longest);

}  // namespace tessera::data
