// A tokenizer as a plugin (docs/tokenizers.md shows it).
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.tokenize;

using namespace tessera;
using namespace tessera::tokenize;

namespace {

/// A token for each small letter, and token 0 for every other byte.
class Letters final : public Tokenizer {
 public:
  explicit Letters(std::string other) : other_(std::move(other)) {}

  std::int64_t vocab_size() const override { return 27; }

  std::optional<TokenId> id(std::string_view token) const override {
    const bool letter = token.size() == 1 && token[0] >= 'a' && token[0] <= 'z';
    return letter ? std::optional<TokenId>(token[0] - 'a' + 1) : std::nullopt;
  }

  std::optional<std::string> token(TokenId id) const override {
    if (id < 0 || id >= 27) {
      return std::nullopt;
    }
    return id == 0 ? other_ : std::string(1, static_cast<char>('a' + id - 1));
  }

  void encode_to(std::string_view text, const EncodeOptions& /*options*/, std::vector<TokenId>& ids,
                 std::vector<ByteRange>* offsets) const override {
    for (std::size_t i = 0; i < text.size(); ++i) {
      ids.push_back(id(text.substr(i, 1)).value_or(0));
      if (offsets != nullptr) {
        offsets->push_back({static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1});
      }
    }
  }

  std::string decode(std::span<const TokenId> ids, bool /*skip_special*/) const override {
    std::string text;
    for (const TokenId one : ids) {
      if (!token(one)) {
        fail_input("tokenizer 'letters': there is no token " + std::to_string(one));
      }
      text += *token(one);
    }
    return text;
  }

 private:
  std::string other_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<Tokenizer>("letters", [](const std::string& /*path*/, PluginOptions& options) {
    return std::make_unique<Letters>(options.text("other", "?"));
  });
}
