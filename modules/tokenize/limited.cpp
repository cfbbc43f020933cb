module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.tokenize;

import tessera.base;

namespace tessera::tokenize {
namespace {

/// Another tokenizer whose ids must be below a limit.
class LimitedTokenizer final : public Tokenizer {
 public:
  LimitedTokenizer(std::shared_ptr<const Tokenizer> whole, std::int64_t rows, std::string model)
      : whole_(std::move(whole)), rows_(rows), model_(std::move(model)) {}

  std::int64_t vocab_size() const override { return whole_->vocab_size(); }
  std::optional<TokenId> id(std::string_view token) const override { return whole_->id(token); }
  std::optional<std::string> token(TokenId id) const override { return whole_->token(id); }
  bool is_special(TokenId id) const override { return whole_->is_special(id); }
  SpecialTokens special_tokens() const override { return whole_->special_tokens(); }

  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
                 std::vector<ByteRange>* offsets) const override {
    const std::size_t before = ids.size();
    whole_->encode_to(text, options, ids, offsets);
    const auto own = std::span(ids).subspan(before);
    const auto beyond = std::ranges::find_if(own, [&](TokenId id) { return id >= rows_; });
    if (beyond != own.end()) {
      refuse(text, options, static_cast<std::size_t>(beyond - own.begin()));
    }
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    return whole_->decode(ids, skip_special);
  }

 private:
  [[noreturn]] void refuse(std::string_view text, const EncodeOptions& options,
                           std::size_t number) const {
    const Encoding all = whole_->encode_with_offsets(text, options);
    const TokenId id = all.ids[number];
    fail_input({.thing = "tokenizer",
                .wrong = fmt::format("the token '{}' (id {}) at byte {} of a text has no row in "
                                     "the embedding of {}",
                                     shown(whole_->token(id).value_or("")), id,
                                     all.offsets[number].begin, model_),
                .expected = fmt::format("ids below {}", rows_),
                .advice = "remove it from the text"});
  }

  std::shared_ptr<const Tokenizer> whole_;
  std::int64_t rows_;
  std::string model_;
};

}  // namespace

OpenedTokenizer limited(const OpenedTokenizer& opened, std::int64_t rows,
                        const std::string& model) {
  OpenedTokenizer out = opened;
  if (!opened.tokenizer || opened.tokenizer->vocab_size() <= rows) {
    return out;
  }
  out.tokenizer = std::make_shared<const LimitedTokenizer>(opened.tokenizer, rows, model);
  if (opened.special.eos && *opened.special.eos >= rows) {
    fail_input(
        {.thing = opened.file,
         .wrong = fmt::format("the token '{}' (id {}), which ends texts, has no row in the "
                              "embedding of {}",
                              shown(opened.tokenizer->token(*opened.special.eos).value_or("")),
                              *opened.special.eos, model),
         .expected = fmt::format("ids below {}", rows),
         .advice = "use the tokenizer that the model was trained with"});
  }
  for (auto* const id : {&out.special.bos, &out.special.pad, &out.special.unknown}) {
    *id = *id && **id < rows ? *id : std::nullopt;
  }
  std::erase_if(out.special.stop, [&](TokenId id) { return id >= rows; });
  return out;
}

}  // namespace tessera::tokenize
