export module tessera.data:examples;

import tessera.base;
import tessera.tokenize;
import :chat_template;
import :text_encoding;

export namespace tessera::data {

/// What a document's loss is the sum over.
enum class TrainOn : std::uint8_t {
  answers,  // of conversations the assistant's answers, of prompts the completion, of texts all
  all,      // every token but the first
};

/// How records become tokens.
struct ExampleOptions {
  SpecialText special = SpecialText::read;  // in texts, prompts and completions
  /// Kinds of contents that a template may leave out; they are counted (Example::dropped).
  std::vector<std::string> allow_dropped = {};
  /// Members of records, besides `tools`, that are variables of the template.
  std::vector<std::string> template_members = {};
  /// Equal where tokenizer and template are equal, so that what was found in data may be kept for
  /// the next start; empty: unknown.
  std::string identity = {};
};
/// The kinds of contents that templates leave out: "content" (of a user or an answer), "system",
/// "reasoning", "tool_calls", "tool_results", "tools".
const std::vector<std::string>& dropped_content_kinds();

/// What a record of JSONL is, by its members.
enum class RecordKind : std::uint8_t {
  conversation,  // messages, or prompt and completion as lists of messages
  completion,    // prompt and completion as texts
  text,          // text
  preference,    // chosen and rejected, with prompt: as texts, or as lists of messages
  tokens,        // input_ids, with labels and attention_mask where there are
};
/// "messages", "prompt and completion", "text", "chosen and rejected", "input_ids".
std::string_view name_of(RecordKind kind);

/// A document as tokens.
struct Example {
  std::vector<tokenize::TokenId> ids;
  std::vector<std::uint8_t> trained;  // as many: 1 where the loss of predicting it is trained
  /// Answers or completions whose first token begins in the prompt; that token is not trained.
  std::int64_t joined = 0;
  std::map<std::string, std::int64_t> dropped = {};  // contents by kind, see ExampleOptions
  std::set<std::string> unread = {};                 // members of the record and of its messages
};

/// Two answers to one prompt, each with the prompt before it.
struct Preference {
  Example chosen;
  Example rejected;
};

/// A text with the name of its class.
struct LabelledText {
  Example example;         // no token is trained
  std::string label;       // a whole number as its digits
  std::int64_t whole = 0;  // tokens, before it was cut
};

/// A text with the names of the classes of its words.
struct TaggedText {
  Example example;  // no token is trained
  /// Of each token the name of its class: of the first token of a word that has one; "" of others.
  std::vector<std::string> labels;
  std::int64_t whole = 0;  // tokens, before it was cut
};

/// Makes documents of the records of JSONL files. Constant, and several threads may use one.
class ExampleMaker {
 public:
  /// `chat`: null where there are no conversations.
  ExampleMaker(tokenize::OpenedTokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat,
               TrainOn train_on, ExampleOptions options = {});

  /// A record's kind, as it is read where answers are learned, or where they are compared: data
  /// sets have `messages` beside `prompt`, and beside `chosen` and `rejected`. Errors (input),
  /// without a place: it is not a JSON object in UTF-8, or has the members of no kind or of
  /// several.
  static RecordKind kind_of(std::string_view record, bool compares = false);

  /// The tokens of a record. Errors (input), without a place: the record is not of a kind, or is a
  /// preference; its messages do not alternate, or end with a question; an answer is empty; a
  /// message writes a special token; the template does not write what the record says, writes no
  /// token that ends an answer, or special tokens that the tokenizer does not have; the first token
  /// of a completion begins in the prompt and there is no other; tokens that the tokenizer does not
  /// have, or with labels of others; those of ChatTemplate and of TextEncoder.
  Example make(std::string_view record) const;

  /// The tokens of a preference. Only its answers are trained. A record without `prompt` has
  /// conversations, whose prompt is the messages with which both begin. Errors (input): as above;
  /// the record is of another kind; both answers are the same; the conversations have no common
  /// beginning, or go on with something else than an answer.
  Preference make_preference(std::string_view record) const;

  /// A text as the tokenizer encodes it, with what it adds, cut to `longest` tokens, and its label.
  /// Errors (input), without a place: the record has no `text` or no `label`, or one of another
  /// type; the text is empty; a label of more than 200 bytes; special tokens where these are
  /// refused.
  LabelledText make_labelled(std::string_view record, std::int64_t longest) const;

  /// The `words` of a record with a blank between two of them, as the tokenizer encodes such a
  /// text, with what it adds, cut to `longest` tokens, and the classes of its words, `labels`: as
  /// many, of which those that are null are not told. Errors (input), without a place: these are
  /// not lists of equal length; a word is empty or has a blank, or no token begins in it; a label
  /// of more than 200 bytes; no word has a label; special tokens where these are refused.
  TaggedText make_tagged(std::string_view record, std::int64_t longest) const;

  /// The text of a record of kind text. Error (input): it is empty, or not of that kind.
  static std::string text_of(std::string_view record);

  const tokenize::OpenedTokenizer& tokenizer() const { return texts().tokenizer(); }
  /// How texts without a conversation are encoded.
  const TextEncoder& texts() const;
  /// Equal for makers that make the same of a record; empty: unknown.
  std::string identity() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// What a template may use of a tokenizer, as JSON: bos_token, eos_token, pad_token, unk_token;
/// and the members of `more`, a JSON object.
std::string template_variables(const tokenize::OpenedTokenizer& tokenizer,
                               std::string_view more = "{}");

}  // namespace tessera::data
