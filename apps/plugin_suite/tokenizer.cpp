module;
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.options;
import tessera.tokenize;

// A tokenizer: whether its ids, tokens, offsets and texts fit together, for texts of all kinds.
namespace tessera::plugin_suite {
namespace {

using tokenize::Encoding;
using tokenize::TokenId;
using tokenize::Tokenizer;

/// Texts of several scripts, of white space, and bytes that are not UTF-8.
std::vector<std::string> texts() {
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) {
    all_bytes += static_cast<char>(byte);
  }
  return {"",
          "a",
          "Some words, and 123 numbers.",
          "  two  blanks\n\n\tand lines\r\n",
          "na\xC3\xAFve caf\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80",
          "<|endoftext|><s></s>",
          std::string(5000, 'x'),
          all_bytes};
}

/// Makes it without options; one that needs a file cannot be tried.
std::shared_ptr<const Tokenizer> made(const std::string& name) {
  try {
    return tokenize::make_tokenizer(name);
  } catch (const Error& error) {
    throw SkippedCheck{fmt::format("it cannot be made without options: {}", error.what())};
  }
}

std::string ids_are_of_the_vocabulary(const Tokenizer& tokenizer) {
  for (const std::string& text : texts()) {
    trying(fmt::format("a text of {} bytes", text.size()));
    for (const TokenId id : tokenizer.encode(text)) {
      if (id < 0 || id >= tokenizer.vocab_size()) {
        return fmt::format("a text has the id {} (expected 0 to {})", id,
                           tokenizer.vocab_size() - 1);
      }
      if (!tokenizer.token(id)) {
        return fmt::format("a text has the id {}, for which token() has nothing", id);
      }
    }
  }
  return "";
}

std::string tokens_have_their_ids(const Tokenizer& tokenizer) {
  if (tokenizer.token(-1) || tokenizer.token(static_cast<TokenId>(tokenizer.vocab_size()))) {
    return "token() has something for an id outside of the vocabulary";
  }
  std::vector<std::string> wrong;
  for (std::int64_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const auto token = tokenizer.token(id);
    const auto back = token ? tokenizer.id(*token) : std::nullopt;
    // Several ids may have one text; id() gives one of them.
    if (token && back && tokenizer.token(*back) != token) {
      wrong.push_back(fmt::format("token() of {} is '{}', whose id() is {}", id, *token, *back));
    }
  }
  return some_of(wrong);
}

std::string offsets_cover_the_text(const Tokenizer& tokenizer) {
  for (const std::string& text : texts()) {
    const Encoding encoding = tokenizer.encode_with_offsets(text);
    if (encoding.ids != tokenizer.encode(text)) {
      return fmt::format("a text of {} bytes has other ids with offsets", text.size());
    }
    if (encoding.ids.size() != encoding.offsets.size()) {
      return fmt::format("{} offsets for {} ids", encoding.offsets.size(), encoding.ids.size());
    }
    std::int64_t before = 0;
    for (const tokenize::ByteRange& range : encoding.offsets) {
      if (range.begin < before || range.end < range.begin || range.end > std::ssize(text)) {
        return fmt::format("offsets [{}, {}) after {} in a text of {} bytes", range.begin,
                           range.end, before, text.size());
      }
      before = range.begin;
    }
  }
  return "";
}

std::string decodes_what_it_encodes(const Tokenizer& tokenizer) {
  for (const std::string& text : texts()) {
    const std::vector<TokenId> ids = tokenizer.encode(text, {.add_special = false});
    const std::string once = tokenizer.decode(ids);
    const std::string twice = tokenizer.decode(tokenizer.encode(once, {.add_special = false}));
    if (once != twice) {
      return fmt::format("the decoded text of {} bytes, encoded and decoded again, is another one",
                         text.size());
    }
  }
  return "";
}

std::string refuses_other_ids(const Tokenizer& tokenizer) {
  for (const std::int64_t id : {std::int64_t{-1}, tokenizer.vocab_size()}) {
    trying(fmt::format("decoding the id {}", id));
    const TokenId one[] = {static_cast<TokenId>(id)};
    try {
      static_cast<void>(tokenizer.decode(one));
    } catch (const Error&) {
      continue;
    }
    return fmt::format("the id {}, which no token has, is decoded without an Error", id);
  }
  return "";
}

std::string threads_agree(const Tokenizer& tokenizer) {
  const std::vector<std::string> own = texts();
  std::vector<std::string_view> many;
  for (int i = 0; i < 50; ++i) {
    many.insert(many.end(), own.begin(), own.end());
  }
  constexpr int threads = 4;
  return tokenize::encode_all(tokenizer, many, {}, threads) ==
                 tokenize::encode_all(tokenizer, many, {}, 1)
             ? ""
             : "four threads have other ids than one";
}

}  // namespace

std::vector<SuiteCheck> tokenizer_suite(const std::string& name) {
  const auto of = [&](std::string (*check)(const Tokenizer&)) {
    return [name, check] { return check(*made(name)); };
  };
  return {{"ids are of the vocabulary", of(ids_are_of_the_vocabulary)},
          {"tokens have their ids", of(tokens_have_their_ids)},
          {"offsets are in order and within the text", of(offsets_cover_the_text)},
          {"a decoded text stays what it is", of(decodes_what_it_encodes)},
          {"an id without a token is an error", of(refuses_other_ids)},
          {"several threads have the ids of one", of(threads_agree)}};
}

}  // namespace tessera::plugin_suite
