export module tessera.app.server:answer_format;

import tessera.app.base;
import tessera.tokenize;
import tessera.text;

// Answers as JSON, in the form of OpenAI's interface.

export namespace tessera::app {

/// What all parts of an answer have.
struct AnswerHead {
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
};

/// A name that requests may give as their model.
struct ServedModel {
  std::string name;
  std::int64_t created = 0;  // seconds since 1970
  std::string parent = {};   // of an adapter: the model; empty: it is the model
};

struct TokenUsage {
  std::int64_t prompt = 0;
  std::int64_t completion = 0;
};

/// A token as its text, and how likely it was.
struct NamedToken {
  std::string text;
  std::optional<double> log_probability;  // none: it is the first one of a text
};

/// A token of an answer.
struct AnswerToken {
  NamedToken own;
  std::vector<NamedToken> likeliest;
  std::int64_t offset = 0;  // characters of the text's tokens before it
};

/// The tokens of a text one after the other, as their texts: how a token is written may depend on
/// the one before it.
class TokenNames {
 public:
  /// The tokenizer must outlive it. `before`: the token after which the first one comes, if any.
  explicit TokenNames(const tokenize::Tokenizer& tokenizer,
                      std::optional<std::int64_t> before = std::nullopt)
      : tokenizer_(&tokenizer), before_(before) {}

  /// The next token, of which nothing else is known.
  AnswerToken add(std::int64_t token);
  AnswerToken add(const text::TokenLikelihoods& token);

 private:
  std::string name(std::int64_t token) const;

  const tokenize::Tokenizer* tokenizer_;
  std::optional<std::int64_t> before_;
  std::int64_t offset_ = 0;
};

/// A call of a tool.
struct AnswerCall {
  std::string id;
  std::size_t index = 0;  // among those of its text
  text::ToolCall call;
};

/// One of the texts of an answer, or a part of it.
struct AnswerText {
  std::size_t index = 0;
  std::string text = {};
  std::string thoughts = {};                                      // before the text
  std::optional<std::vector<AnswerToken>> tokens = std::nullopt;  // none: nobody asked for them
  std::optional<text::TextEnd> end = std::nullopt;                // of a part: not the last one
  std::vector<AnswerCall> calls = {};
  bool called = false;  // the whole text has calls
};

/// How the answers of an endpoint are written.
class AnswerFormat {
 public:
  virtual ~AnswerFormat();
  /// What the ids of answers begin with.
  virtual const char* id_prefix() const = 0;
  /// A whole answer.
  virtual std::string whole(const AnswerHead& head, std::span<const AnswerText> texts,
                            const TokenUsage& usage) const = 0;
  /// An event before the first part of a text; empty: none.
  virtual std::string first(const AnswerHead& head, std::size_t index) const = 0;
  /// An event with a part of a text.
  virtual std::string part(const AnswerHead& head, const AnswerText& text) const = 0;
  /// The last event but for the end, where a request asks for it.
  virtual std::string usage(const AnswerHead& head, const TokenUsage& usage) const = 0;
};

/// Of /v1/chat/completions and of /v1/completions.
const AnswerFormat& chat_format();
const AnswerFormat& completion_format();

/// What ends a stream.
inline constexpr const char* stream_end = "data: [DONE]\n\n";

std::string error_json(const std::string& message, const char* type);
std::string model_json(const ServedModel& model);
std::string models_json(std::span<const ServedModel> models);
/// Tokens of a text with their number and the longest sequence of the model; a text of tokens.
std::string tokens_json(std::span<const std::int64_t> tokens, std::int64_t longest);
std::string prompt_json(const std::string& text);

}  // namespace tessera::app
