module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
module tessera.app.data;

import tessera.base;

namespace tessera::app {
namespace {

/// Every byte is a token.
class BytesTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::int64_t vocab() const override { return 256; }
  std::vector<std::int64_t> encode(std::string_view text) const override {
    std::vector<std::int64_t> ids;
    ids.reserve(text.size());
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  std::string decode(std::span<const std::int64_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const std::int64_t id : ids) {
      if (id < 0 || id >= 256) {
        fail_input(fmt::format("tokenizer 'bytes': there is no token {} (expected 0 to 255)", id));
      }
      text += static_cast<char>(id);
    }
    return text;
  }
};

/// The first file, by name, that shows that a folder has its own tokenizer; "" if there is none.
std::string tokenizer_file(const std::filesystem::path& folder) {
  constexpr std::array<std::string_view, 8> names = {"vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "added_tokens.json",
                                                     "spiece.model",
                                                     "tekken.json",
                                                     "special_tokens_map.json",
                                                     "sentencepiece.bpe.model"};
  std::string first;
  std::error_code error;
  for (std::filesystem::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    const std::string name = next->path().filename().string();
    if ((name.starts_with("tokenizer") || name.ends_with(".tiktoken") ||
         std::ranges::find(names, name) != names.end()) &&
        (first.empty() || name < first)) {
      first = name;
    }
  }
  if (error && !folder.empty()) {
    fail_input({.thing = folder.string(),
                .wrong = fmt::format("the folder cannot be read ({})", error.message()),
                .advice = "check its permissions"});
  }
  return first;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  if (name == "bytes") {
    return std::make_unique<BytesTokenizer>();
  }
  fail_input(fmt::format("tokenizer '{}' is unknown (expected 'bytes')", name));
}

void check_tokenizer_fits(std::string_view name, std::int64_t tokenizer_vocab, std::int64_t vocab,
                          const std::filesystem::path& folder, const std::string& place) {
  const std::string own = tokenizer_file(folder);
  if (vocab == tokenizer_vocab && own.empty()) {
    return;
  }
  const std::string why =
      own.empty() ? fmt::format("the folder's model has a vocabulary of {} tokens (expected {})",
                                vocab, tokenizer_vocab)
                  : fmt::format("the folder has its own tokenizer ({})", own);
  fail_input({.thing = place,
              .wrong = fmt::format(
                  "{}, so the model cannot use the ids that tokenizer '{}' makes from data.text",
                  why, name),
              .advice = "set data.tokens to files of ids that the model's own tokenizer made"});
}

}  // namespace tessera::app
