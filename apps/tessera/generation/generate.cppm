export module tessera.app.generation:generate;

import tessera.app.base;

// Text from a trained model, token by token, with a cache of keys and values.

export namespace tessera::app {

struct GenerationOptions {
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // sample among the k likeliest; 0: among all
  std::uint64_t seed = 1;
  std::string tokenizer = {};  // a folder or file; empty: the one that the checkpoint names
};

/// Continues `prompt` by at most options.tokens tokens of the checkpoint's model; each piece of
/// text is passed to `each`, if given, as it comes. Ends before a token that the model's eos names
/// (config.json's eos_token_id, a token or a list) or that its tokenizer's files name, which is not
/// part of the text; a model without eos never ends early. The work per token is linear in the
/// number of tokens so far. Errors (input): the checkpoint cannot be read; it was trained on
/// ready-made tokens, or has a smaller vocabulary than the tokenizer, whose file is not there or
/// has changed; an empty prompt.
std::string generate_text(const std::string& checkpoint, const std::string& prompt,
                          const GenerationOptions& options,
                          const std::function<void(const std::string&)>& each = nullptr);

}  // namespace tessera::app
