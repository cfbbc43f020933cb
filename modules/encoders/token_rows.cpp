// Texts as rows of tokens.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.encoders;

import tessera.base;
import tessera.data;
import tessera.tensor;
import tessera.tokenize;
import :token_rows;

namespace tessera::encoders {

TokenRows token_rows(const tokenize::Tokenizer& tokenizer, std::span<const std::string> texts,
                     std::int64_t longest, std::int64_t vocab, std::int64_t padding) {
  if (texts.empty() || longest < 1) {
    fail_input({.thing = "token_rows",
                .wrong = fmt::format("cannot make rows of at most {} tokens of {} texts", longest,
                                     texts.size())});
  }
  TokenRows rows;
  std::vector<tokenize::Encoding> encoded;
  std::size_t length = 1;
  for (const std::string& text : texts) {
    tokenize::Encoding one = tokenizer.encode_with_offsets(text, {.parse_special = false});
    rows.cut += data::shorten(one, longest) ? 1 : 0;
    for (const tokenize::TokenId id : one.ids) {
      if (id >= vocab) {
        fail_input({.thing = "token_rows",
                    .wrong = fmt::format("the tokenizer has token {}, and the model has {} tokens",
                                         id, vocab),
                    .advice = "use the tokenizer of the model's folder"});
      }
    }
    length = std::max(length, one.ids.size());
    encoded.push_back(std::move(one));
  }
  std::vector<std::int64_t> ids(encoded.size() * length, padding);
  std::vector<std::int64_t> mask(encoded.size() * length, 0);
  for (std::size_t row = 0; row < encoded.size(); ++row) {
    for (std::size_t t = 0; t < encoded[row].ids.size(); ++t) {
      ids[row * length + t] = encoded[row].ids[t];
      mask[row * length + t] = 1;
    }
  }
  const Dims shape{std::ssize(texts), static_cast<std::int64_t>(length)};
  rows.ids = from_values(std::span<const std::int64_t>(ids), shape);
  rows.mask = from_values(std::span<const std::int64_t>(mask), shape);
  return rows;
}

}  // namespace tessera::encoders
