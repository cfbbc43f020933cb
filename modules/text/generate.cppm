export module tessera.text:generate;

import tessera.base;
import tessera.tokenize;
import :sampling;
import :text_model;
import :decoding;

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

/// The seed of the n-th text of a call: texts of one seed are drawn independently.
std::uint64_t seed_of(std::uint64_t seed, std::size_t number);

/// Continues prompts of tokens. Special tokens are not part of the texts. What is drawn for a
/// prompt is a function of the seed and the prompt's number, whatever the batch is. The work per
/// token is linear in the number of tokens so far. Prompts of different lengths share a batch: the
/// longer ones are read while the shorter ones are continued. Of several copies of the model, each
/// continues its own prompts, and has all texts in the end. `wanted` is asked between the passes
/// in which long prompts are read: where it is false, texts of the batch end as cancelled. Where
/// likelihoods of the prompts are asked for, the number of tokens may be 0. Errors (input): an
/// option out of range; a prompt without tokens, or longer than the model computes.
std::vector<GeneratedText> generate(const TextModel& model, Decoding& decoding,
                                    std::span<const std::vector<std::int64_t>> prompts,
                                    const GenerationOptions& options,
                                    const TextReceiver& receive = nullptr,
                                    const std::function<bool()>& wanted = nullptr);

/// The tokens of a text as a prompt (data::TextEncoder::prompt). Errors (input): those; it is
/// empty.
std::vector<std::int64_t> prompt_tokens(const TextModel& model, std::string_view text);

/// Continues a text with a model that is opened for it.
std::string generate_text(const std::string& model, const std::string& prompt,
                          const GenerationOptions& options);

}  // namespace tessera::text
