export module tessera.data:examples;

import tessera.base;
import tessera.tokenize;
import :chat_template;

export namespace tessera::data {

/// What a document's loss is the sum over.
enum class TrainOn : std::uint8_t {
  answers,  // of conversations the assistant's answers, of prompts the completion, of texts all
  all,      // every token but the first
};

/// What a record of JSONL is, by its members.
enum class RecordKind : std::uint8_t {
  conversation,  // messages, or prompt and completion as lists of messages
  completion,    // prompt and completion as texts
  text,          // text
  preference,    // chosen and rejected, with prompt: as texts, or as lists of messages
};
/// "messages", "prompt and completion", "text", "chosen and rejected".
std::string_view name_of(RecordKind kind);

/// A document as tokens.
struct Example {
  std::vector<tokenize::TokenId> ids;
  std::vector<std::uint8_t> trained;  // as many: 1 where the loss of predicting it is trained
  /// Answers or completions whose first token begins in the prompt; that token is not trained.
  std::int64_t joined = 0;
};

/// Two answers to one prompt, each with the prompt before it.
struct Preference {
  Example chosen;
  Example rejected;
};

/// Makes documents of the records of JSONL files. Constant, and several threads may use one.
class ExampleMaker {
 public:
  /// `chat`: null where there are no conversations.
  ExampleMaker(tokenize::OpenedTokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat,
               TrainOn train_on);

  /// A record's kind. Errors (input), without a place: it is not a JSON object in UTF-8, or has
  /// the members of no kind or of several.
  static RecordKind kind_of(std::string_view record);

  /// The tokens of a record. Errors (input), without a place: the record is not of a kind, or is a
  /// preference; its
  /// messages do not alternate, or end with a question; an answer is empty; a message writes a
  /// special token; the template writes no token that ends an answer, or special tokens that the
  /// tokenizer does not have; and those of ChatTemplate.
  Example make(std::string_view record) const;

  /// The tokens of a preference. Only its answers are trained. A record without `prompt` has
  /// conversations, whose prompt is the messages with which both begin. Errors (input): as above;
  /// the record is of another kind; both answers are the same; the conversations have no common
  /// beginning, or go on with something else than an answer.
  Preference make_preference(std::string_view record) const;

  /// The text of a record of kind text. Error (input): it is empty, or not of that kind.
  static std::string text_of(std::string_view record);

  const tokenize::OpenedTokenizer& tokenizer() const { return tokenizer_; }
  /// What the tokenizer adds before and behind each text; behind it also the token that ends
  /// texts, where there is one.
  std::span<const tokenize::TokenId> prefix() const { return prefix_; }
  std::span<const tokenize::TokenId> suffix() const { return suffix_; }

 private:
  Example conversation(std::string_view record, std::int64_t first_trained) const;
  Example completion(const std::string& prompt, const std::string& answer, const char* name) const;
  Example whole(const std::string& text) const;
  void train_answers(const RenderedChat& chat, std::int64_t first_trained,
                     const tokenize::Encoding& tokens, Example& out) const;
  void check_special(const std::string& text, std::span<const tokenize::TokenId> ids) const;
  /// Error (input): a text of a user contains a special token.
  void check_plain(std::string_view text, const std::string& what) const;
  bool ends_answers(tokenize::TokenId id) const;

  tokenize::OpenedTokenizer tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_;
  TrainOn train_on_;
  std::vector<tokenize::TokenId> prefix_;
  std::vector<tokenize::TokenId> suffix_;
  std::string special_beginnings_;  // the first bytes of special tokens
};

/// What a template may use of a tokenizer, as JSON: bos_token, eos_token, pad_token, unk_token;
/// and the members of `more`, a JSON object.
std::string template_variables(const tokenize::OpenedTokenizer& tokenizer,
                               std::string_view more = "{}");

}  // namespace tessera::data
