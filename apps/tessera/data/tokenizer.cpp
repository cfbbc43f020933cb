#include "data/tokenizer.hpp"

#include <fmt/format.h>

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
        fail_input(fmt::format("tokenizer 'bytes': no token {} (expected 0 to 255)", id));
      }
      text += static_cast<char>(id);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  if (name == "bytes") {
    return std::make_unique<BytesTokenizer>();
  }
  fail_input(fmt::format("tokenizer '{}' is unknown (expected 'bytes')", name));
}

}  // namespace tessera::app
