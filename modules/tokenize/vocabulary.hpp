#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flat_map.hpp"

namespace tessera::tokenize {

/// No file has as many tokens; a larger id is a fault of the file.
inline constexpr std::int64_t most_ids = 1 << 24;
/// Nor as long ones: at each place of a text as much of one is read as fits.
inline constexpr std::size_t longest_token = 1024;
/// Error (input): the token is longer.
void check_length(std::string_view token);

/// Tokens by id and ids by token. Ids may have gaps.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// An object of tokens and their ids. Errors (input) that begin with `where`: an id twice, or no
  /// id.
  Vocabulary(const nlohmann::json& object, const std::string& where);
  /// A token of each id, without gaps; of equal tokens the last id is found, as in Hugging Face's
  /// library.
  explicit Vocabulary(std::vector<std::string> tokens);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::optional<std::int32_t> find(std::string_view token) const {
    const auto at = ids_.find(token);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }
  /// The id. Error (input): there is none.
  std::int32_t require(std::string_view token, const std::string& where) const;
  const std::vector<std::optional<std::string>>& tokens() const { return tokens_; }

 private:
  std::vector<std::optional<std::string>> tokens_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // of tokens_'s texts
};

/// Texts that begin a text, found byte by byte.
class Trie {
 public:
  static constexpr std::uint32_t root = 0;
  static constexpr std::uint32_t none = ~0U;

  /// Error (input): see check_length.
  void add(std::string_view text, std::int32_t value);
  std::uint32_t next(std::uint32_t node, char byte) const {
    if (node == root) {
      return first_[static_cast<unsigned char>(byte)];
    }
    const std::uint32_t* found =
        nodes_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(byte));
    return found == nullptr ? none : *found;
  }
  /// The value of the text that ends at a node; -1: none does.
  std::int32_t value(std::uint32_t node) const { return values_[node]; }

 private:
  std::vector<std::uint32_t> first_ = std::vector<std::uint32_t>(256, none);
  std::vector<std::int32_t> values_ = {-1};
  FlatMap<std::uint32_t> nodes_;
};

}  // namespace tessera::tokenize
