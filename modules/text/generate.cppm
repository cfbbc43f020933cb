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
};

/// Receives a part of the text of a prompt, by its number, with each token; it is empty where the
/// token completes no text that can be shown (StreamedText). False: this text needs no more.
using TextReceiver = std::function<bool(std::size_t prompt, const std::string& part)>;

/// Continues prompts of tokens. Special tokens are not part of the texts. What is drawn for a
/// prompt is a function of the seed and the prompt's number, whatever the batch is. The work per
/// token is linear in the number of tokens so far. Prompts of different lengths share a batch: the
/// longer ones are read while the shorter ones are continued. Of several copies of the model, each
/// continues its own prompts, and has all texts in the end. `wanted` is asked between the passes
/// in which long prompts are read: where it is false, texts of the batch end as cancelled. Errors
/// (input): an option out of range; a prompt without tokens, or longer than the model computes.
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
