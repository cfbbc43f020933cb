// Text from a trained model, token by token, with a cache of keys and values.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::app {

struct GenerationOptions {
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // sample among the k likeliest; 0: among all
  std::uint64_t seed = 1;
};

/// Continues `prompt` by options.tokens tokens of the checkpoint's model; `each`, if given, sees
/// the text as it comes. Errors (input): the checkpoint cannot be read, or was trained on
/// ready-made tokens and has no text; an empty prompt.
std::string generate_text(const std::string& checkpoint, const std::string& prompt,
                          const GenerationOptions& options,
                          const std::function<void(const std::string&)>& each = nullptr);

}  // namespace tessera::app
