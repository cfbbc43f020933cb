module;
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>
module tessera.tokenize;

import tessera.base;
import :built_in;

namespace tessera::tokenize {
namespace {

/// Every byte is a token.
class BytesTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return 256; }
  std::optional<TokenId> id(std::string_view token) const override {
    return token.size() == 1 ? std::optional<TokenId>(static_cast<unsigned char>(token[0]))
                             : std::nullopt;
  }
  std::optional<std::string> token(TokenId id) const override {
    return id >= 0 && id < 256 ? std::optional(std::string(1, static_cast<char>(id)))
                               : std::nullopt;
  }
  void encode_to(std::string_view text, const EncodeOptions& /*options*/, std::vector<TokenId>& ids,
                 std::vector<ByteRange>* offsets) const override {
    ids.reserve(ids.size() + text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      ids.push_back(static_cast<unsigned char>(text[i]));
      if (offsets != nullptr) {
        offsets->push_back({static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1});
      }
    }
  }
  std::string decode(std::span<const TokenId> ids, bool /*skip_special*/) const override {
    std::string text;
    text.reserve(ids.size());
    for (const TokenId id : ids) {
      if (id < 0 || id >= 256) {
        fail_input(fmt::format("tokenizer 'bytes': there is no token {} (expected 0 to 255)", id));
      }
      text += static_cast<char>(id);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

}  // namespace tessera::tokenize
