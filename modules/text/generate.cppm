export module tessera.text:generate;

import tessera.base;
import tessera.tokenize;
import tessera.grammar;
import :sampling;
import :text_model;
import :text_engine;

// Text from a trained model, token by token.

export namespace tessera::text {

/// How texts are continued, and where they end.
struct GenerationOptions {
  std::int64_t tokens = 200;  // at most so many are generated
  SamplingOptions sampling = {};
  std::uint64_t seed = 1;
  std::vector<std::string> stop = {};         // the text ends before the first of these
  std::vector<std::int64_t> end_tokens = {};  // besides those of the model (TextModel::ends_at)
  bool beyond_end = false;                    // tokens that end texts for the model do not end it
  std::int64_t batch = 8;                     // prompts that are continued at the same time
  // With the likelihood of each generated token, and of so many of the likeliest ones.
  std::optional<std::int64_t> likeliest = std::nullopt;
  bool of_prompt = false;  // then also those of the prompt's tokens after the first one
  // What the text must follow: it ends by a token or at its limit only. Its tokens are
  // token_tree().
  std::shared_ptr<grammar::Constraint> constraint = nullptr;
  std::vector<std::int64_t> shown = {};  // special tokens that are parts of the text
};

/// Why a text ends.
enum class TextEnd : std::uint8_t {
  token,      // a token that ends texts, which is not part of it
  stop,       // a stop string, which is not part of it
  length,     // it has options.tokens tokens, or the model computes no longer sequence
  cancelled,  // who receives it wanted no more
};

/// What follows a prompt.
struct GeneratedText {
  std::string text;
  std::vector<std::int64_t> tokens;  // the one that ended it included
  TextEnd end = TextEnd::length;
  std::vector<TokenLikelihoods> likelihoods = {};         // of these tokens, where it was asked for
  std::vector<TokenLikelihoods> prompt_likelihoods = {};  // likewise
};

/// What a token adds to a text.
struct TextPart {
  std::string text = {};                      // empty: none that can be shown (StreamedText)
  std::span<const std::int64_t> tokens = {};  // one, or at the end of the text none
  std::span<const TokenLikelihoods> likelihoods = {};  // of these tokens, where it was asked for
};

/// Receives the parts of the text of a prompt, by its number. False: this text needs no more.
using TextReceiver = std::function<bool(std::size_t prompt, const TextPart& part)>;

/// Receives the whole text of a prompt, by its number.
using TextEnded = std::function<void(std::size_t prompt, const GeneratedText& text)>;

/// The seed of the n-th text of a call: texts of one seed are drawn independently.
std::uint64_t seed_of(std::uint64_t seed, std::size_t number);

/// A prompt and the text that follows it, token by token: draws, decodes, and knows the end.
/// Special tokens are not part of the text. What is drawn is a function of the seed, the number and
/// the logits.
class Continuation {
 public:
  /// The model must outlive it. `number`: the prompt's. Where likelihoods of the prompt are asked
  /// for, the number of tokens may be 0. Errors (input): an option out of range; a prompt without
  /// tokens, or longer than the model computes.
  Continuation(const TextModel& model, std::span<const std::int64_t> prompt, std::size_t number,
               const GenerationOptions& options, TextReceiver receive);
  ~Continuation();
  Continuation(const Continuation&) = delete;
  Continuation& operator=(const Continuation&) = delete;

  /// What is asked of the prompt itself; then the text has ended where no token is asked for.
  ScoredPrompt scored_prompt();
  bool ended() const;
  /// The token that follows, by its logits; none: the text has ended.
  std::optional<std::int64_t> next(const std::vector<double>& logits);
  /// Ends the text, unless it has ended.
  void end(TextEnd how);
  GeneratedText take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Continues prompts of tokens: `options.batch` of them at the same time, each as Continuation. The
/// work per token is linear in the number of tokens so far. Of several copies of the model, each
/// continues its own prompts, and has all texts in the end. `wanted` is asked between steps: where
/// it is false, texts end as cancelled. `ended` receives each text of this copy at its end. The
/// engine has no other requests. Errors (input): those of
/// Continuation and of Engine::submit.
std::vector<GeneratedText> generate(const TextModel& model, Engine& engine,
                                    std::span<const std::vector<std::int64_t>> prompts,
                                    const GenerationOptions& options,
                                    const TextReceiver& receive = nullptr,
                                    const std::function<bool()>& wanted = nullptr,
                                    const TextEnded& ended = nullptr);

/// The texts of the model's tokens, as they follow others; of special tokens that are not `shown`,
/// and of those whose bytes cannot be found, none.
std::shared_ptr<const grammar::TokenTree> token_tree(const TextModel& model,
                                                     std::span<const std::int64_t> shown = {});

/// The tokens of a text as a prompt (data::TextEncoder::prompt). Errors (input): those; it is
/// empty.
std::vector<std::int64_t> prompt_tokens(const TextModel& model, std::string_view text);

/// Continues a text with a model that is opened for it.
std::string generate_text(const std::string& model, const std::string& prompt,
                          const GenerationOptions& options);

}  // namespace tessera::text
