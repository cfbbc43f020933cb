module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import tessera.tokenize;

namespace tessera::data {

using tokenize::TokenId;

TextEncoder::TextEncoder(tokenize::OpenedTokenizer tokenizer, SpecialText special)
    : tokenizer_(std::move(tokenizer)), special_(special) {
  const tokenize::Tokenizer& t = *tokenizer_.tokenizer;
  const std::vector<TokenId> plain = t.encode("a", {.add_special = false});
  const std::vector<TokenId> all = t.encode("a");
  if (const auto at = std::ranges::search(all, plain); !at.empty()) {
    prefix_.assign(all.begin(), at.begin());
    suffix_.assign(at.end(), all.end());
  }
  if (suffix_.empty() && tokenizer_.special.eos) {
    suffix_.push_back(*tokenizer_.special.eos);
  }
  for (std::int64_t id = 0; id < t.vocab_size(); ++id) {
    const auto one = static_cast<TokenId>(id);
    if (t.is_special(one)) {
      std::string text = t.token(one).value_or("");
      if (!text.empty() && special_beginnings_.find(text[0]) == std::string::npos) {
        special_beginnings_ += text[0];
      }
      if (!text.empty()) {
        special_tokens_.push_back(std::move(text));
      }
    }
  }
}

std::optional<TokenId> TextEncoder::special_in(std::string_view text) const {
  if (text.find_first_of(special_beginnings_) == std::string_view::npos) {
    return std::nullopt;
  }
  const tokenize::Tokenizer& t = *tokenizer_.tokenizer;
  for (const TokenId id : t.encode(text, {.add_special = false})) {
    // The token for what is unknown stands for other texts than its own.
    const bool written = id != tokenizer_.special.unknown ||
                         text.find(t.token(id).value_or("")) != std::string_view::npos;
    if (t.is_special(id) && written) {
      return id;
    }
  }
  return std::nullopt;
}

void TextEncoder::encode_to(std::string_view text, const Ends& ends, std::vector<TokenId>& ids,
                            std::vector<tokenize::ByteRange>* offsets) const {
  const tokenize::Tokenizer& t = *tokenizer_.tokenizer;
  if (special_ == SpecialText::refuse) {
    if (const auto id = special_in(text)) {
      fail_input({.wrong = fmt::format("the text contains the special token '{}'",
                                       shown(t.token(*id).value_or(""), 40)),
                  .advice = "remove it, or set data.special_tokens to \"read\" or \"letters\""});
    }
  }
  const std::size_t before = ids.size();
  const auto add = [&](std::span<const TokenId> more, std::int64_t at) {
    ids.insert(ids.end(), more.begin(), more.end());
    if (offsets != nullptr) {
      offsets->resize(offsets->size() + more.size(), {at, at});
    }
  };
  if (ends.begins) {
    add(prefix_, 0);
  }
  const std::size_t own = ids.size();
  t.encode_to(text, {.add_special = false, .parse_special = special_ != SpecialText::letters}, ids,
              offsets);
  const auto& bos = tokenizer_.special.bos;
  if (ends.begins && bos && ids.size() > before + 1 && ids[before] == *bos &&
      ids[before + 1] == *bos) {
    fail_input({.wrong = fmt::format("the text begins with '{}', which the tokenizer adds to each "
                                     "text, so it would begin with two",
                                     shown(t.token(*bos).value_or(""), 40)),
                .advice = "remove it from the text"});
  }
  const auto tokens = std::span(ids).subspan(own);
  const bool ended = !suffix_.empty() && tokens.size() >= suffix_.size() &&
                     std::ranges::equal(tokens.last(suffix_.size()), suffix_);
  if (ends.ends && !ended) {
    add(suffix_, std::ssize(text));
  }
}

std::vector<TokenId> TextEncoder::prompt(std::string_view text) const {
  std::vector<TokenId> ids;
  encode_to(text, {.begins = true, .ends = false}, ids);
  return ids;
}

std::size_t TextEncoder::cut_before_special(std::string_view text, std::size_t at) const {
  if (special_ == SpecialText::letters) {
    return at;
  }
  for (const std::string& token : special_tokens_) {
    const std::size_t from = at > token.size() ? at - token.size() + 1 : 1;
    const std::string_view around =
        text.substr(from, std::min(at + token.size(), text.size()) - from);
    if (const std::size_t found = around.find(token);
        found != std::string_view::npos && from + found < at) {
      return from + found;
    }
  }
  return at;
}

bool shorten(tokenize::Encoding& text, std::int64_t longest) {
  if (std::ssize(text.ids) <= longest) {
    return false;
  }
  // Tokens that were added stand for no bytes.
  const auto is_added = [](const tokenize::ByteRange& range) { return range.begin == range.end; };
  std::int64_t last = 0;
  while (last < std::ssize(text.offsets) && is_added(*(text.offsets.rbegin() + last))) {
    ++last;
  }
  if (last >= longest) {
    fail_input({.wrong = "rows are too short for the tokens that the tokenizer adds",
                .expected = fmt::format("more than {}", last),
                .got = fmt::format("{}", longest)});
  }
  text.ids.erase(text.ids.begin() + (longest - last), text.ids.end() - last);
  text.offsets.erase(text.offsets.begin() + (longest - last), text.offsets.end() - last);
  return true;
}

}  // namespace tessera::data
