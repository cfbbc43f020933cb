#include "vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tessera/shown.hpp>

#include "fields.hpp"

import tessera.base;

namespace tessera::tokenize {

Vocabulary::Vocabulary(const nlohmann::json& object, const std::string& where) {
  std::int64_t count = 0;
  for (const auto& [token, id] : object.items()) {
    if (!id.is_number_integer() || id < 0 || id >= most_ids) {
      fail_input({.thing = where,
                  .wrong = fmt::format("token '{}' has no valid id", shown(token)),
                  .expected = fmt::format("an integer from 0 to {}", most_ids - 1),
                  .got = json_shown(id)});
    }
    count = std::max(count, id.get<std::int64_t>() + 1);
  }
  tokens_.resize(static_cast<std::size_t>(count));
  ids_.reserve(object.size());
  for (const auto& [token, value] : object.items()) {
    const auto id = value.get<std::int32_t>();
    auto& place = tokens_[static_cast<std::size_t>(id)];
    if (place) {
      fail_input({.thing = where,
                  .wrong = fmt::format("the tokens '{}' and '{}' have the same id, {}",
                                       shown(*place), shown(token), id)});
    }
    place = token;
    ids_.emplace(*place, id);
  }
}

Vocabulary::Vocabulary(std::vector<std::string> tokens) {
  tokens_.reserve(tokens.size());
  for (std::string& token : tokens) {
    tokens_.emplace_back(std::move(token));
  }
  ids_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    ids_.insert_or_assign(*tokens_[id], static_cast<std::int32_t>(id));
  }
}

std::int32_t Vocabulary::require(std::string_view token, const std::string& where) const {
  const std::optional<std::int32_t> id = find(token);
  if (!id) {
    fail_input({.thing = where,
                .wrong = fmt::format("the token '{}' is not in the vocabulary", shown(token))});
  }
  return *id;
}

void check_length(std::string_view token) {
  if (token.size() > longest_token) {
    fail_input({.thing = fmt::format("tokenizer: the token '{}'", shown(token, 40)),
                .wrong = "it is too long",
                .expected = fmt::format("at most {} bytes", longest_token),
                .got = fmt::format("{}", token.size())});
  }
}

void Trie::add(std::string_view text, std::int32_t value) {
  check_length(text);
  std::uint32_t node = root;
  for (const char c : text) {
    std::uint32_t following = next(node, c);
    if (following == none) {
      following = static_cast<std::uint32_t>(values_.size());
      values_.push_back(-1);
      if (node == root) {
        first_[static_cast<unsigned char>(c)] = following;
      } else {
        nodes_[std::uint64_t{node} << 8 | static_cast<unsigned char>(c)] = following;
      }
    }
    node = following;
  }
  values_[node] = value;
}

}  // namespace tessera::tokenize
