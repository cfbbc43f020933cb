module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.tokenize;
import tessera.grammar;

namespace tessera::text {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// The byte that a character stands for in vocabularies of bytes; none: it stands for none. Source:
/// bytes_to_unicode of GPT-2's encoder.
std::optional<char> byte_of(char32_t character) {
  static const std::array<std::int16_t, 512> table = [] {
    std::array<std::int16_t, 512> made;
    made.fill(-1);
    std::size_t next = 256;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const bool shown =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      made.at(shown ? byte : next++) = static_cast<std::int16_t>(byte);
    }
    return made;
  }();
  const std::int16_t byte = character < table.size() ? table[character] : std::int16_t{-1};
  return byte < 0 ? std::nullopt : std::optional(static_cast<char>(byte));
}

/// The bytes of a token whose text is not whole characters, by how the vocabulary writes it.
std::string bytes_of(std::string_view written) {
  const auto hex = [](char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; };
  if (written.size() == 6 && written.starts_with("<0x") && written.ends_with('>')) {
    return {static_cast<char>(hex(written[3]) << 4U | hex(written[4]))};
  }
  std::string bytes;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const auto head = static_cast<unsigned char>(written[i]);
    char32_t character = head;
    if (head >= 0xC0 && head < 0xE0 && i + 1 < written.size()) {
      character = (head & 0x1FU) << 6U | (static_cast<unsigned char>(written[++i]) & 0x3FU);
    }
    const auto byte = byte_of(character);
    if (!byte || head >= 0xE0) {
      return {};
    }
    bytes += *byte;
  }
  return bytes;
}

std::string shown_bytes(std::string_view bytes) {
  StreamedText text({});
  std::string all = text.add(bytes);
  return all + text.finish();
}

}  // namespace

std::shared_ptr<const grammar::TokenTree> token_tree(const TextModel& model,
                                                     std::span<const std::int64_t> shown) {
  const tokenize::Tokenizer& tokenizer = *model.tokenizer().tokenizer;
  std::vector<std::string> texts(static_cast<std::size_t>(model.shape().vocab));
  // A token may be written in another way at the beginning of a text.
  const std::vector<tokenize::TokenId> before = tokenizer.encode("a", {.add_special = false});
  const std::string of_before = tokenizer.decode(before);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<tokenize::TokenId>(i);
    const auto written = tokenizer.token(id);
    if (!written) {
      continue;
    }
    if (tokenizer.is_special(id)) {
      const bool is_shown = std::ranges::find(shown, std::int64_t{id}) != shown.end();
      texts[i] = is_shown ? *written : "";
      continue;
    }
    std::vector<tokenize::TokenId> both = before;
    both.push_back(id);
    const std::string text = tokenizer.decode(both);
    if (!text.starts_with(of_before)) {
      continue;
    }
    std::string own = text.substr(of_before.size());
    if (own.find(replacement) != std::string::npos) {
      std::string bytes = bytes_of(*written);
      own = shown_bytes(bytes) == own ? std::move(bytes) : std::string();
    }
    constexpr std::size_t longest = 256;
    texts[i] = own.size() <= longest ? std::move(own) : std::string();
  }
  // A text must be those of its tokens one after the other; some begin with a blank of their own.
  const std::string sample = R"({"a b": [1, "c"], "d": true})";
  std::string joined;
  for (const tokenize::TokenId id : tokenizer.encode(sample, {.add_special = false})) {
    joined += texts.at(static_cast<std::size_t>(id));
  }
  if (joined != sample && joined != " " + sample) {
    fail_input({.thing = "tokenizer",
                .wrong = "texts are not those of their tokens one after the other, so they cannot "
                         "be made to follow a grammar"});
  }
  return std::make_shared<const grammar::TokenTree>(texts);
}

}  // namespace tessera::text
