export module tessera.text:perplexity;

import tessera.base;
import :text_model;

export namespace tessera::text {

/// Which tokens are scored, and after how many others.
struct PerplexityOptions {
  std::int64_t length = 0;  // tokens of a window, or of a document at most; 0: at most 2048
  /// From a window of a text to the next one; 0: length. Of a window that overlaps the one before,
  /// only the tokens behind it are scored, after more of the text before them.
  std::int64_t stride = 0;
  bool all_tokens = false;  // of records, not only of answers (data.train_on)
};

/// How likely a model finds some texts.
struct Perplexity {
  std::int64_t texts = 0;     // files, or documents
  std::int64_t left_out = 0;  // documents that are too long
  std::int64_t tokens = 0;    // that are scored
  std::int64_t bytes = 0;     // of texts; 0: records
  double loss = 0;            // the mean over these tokens, in nats
  double perplexity() const;
  /// Bits for each byte of the texts, which can be compared between tokenizers.
  double bits_per_byte() const;
};

/// Perplexity of text files, one after the other. Each token is scored once, the first one not.
/// Errors (input): a file cannot be read, or is not UTF-8; there is no token to score.
Perplexity text_perplexity(const TextModel& model, std::span<const std::string> files,
                           const PerplexityOptions& options);
/// Perplexity of the records of JSONL files (docs/data.md): of answers and completions, and of
/// texts. Each is scored alone. `chat_template`: a file; empty: the tokenizer's. Errors (input): a
/// wrong record, with its file and line; as above.
Perplexity record_perplexity(const TextModel& model, std::span<const std::string> files,
                             const std::string& chat_template, const PerplexityOptions& options);

}  // namespace tessera::text
