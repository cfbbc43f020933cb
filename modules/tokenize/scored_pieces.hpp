// SentencePiece's pairs in two forms: pieces with scores, and a tokenizer.json of merges. Plain
// C++.
#pragma once
#include <cstdint>
#include <string>
#include <tessera/json.hpp>
#include <vector>

namespace tessera::tokenize {

/// What a token is, by SentencePiece's numbers.
enum class TokenType : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

struct ScoredPiece {
  std::string text;
  float score = 0;
  TokenType type = TokenType::unused;
};

struct ScoredPieces {
  std::vector<ScoredPiece> pieces;  // by their ids
  bool prefixed = false;            // a space is added before a text
  std::string problem = {};         // why there are none; empty: there are
};

/// A tokenizer.json with the same tokens, as transformers makes it of a SentencePiece model; null
/// and a problem where it has none.
nlohmann::json merges_of_pieces(const ScoredPieces& all, std::string& problem);

/// The other way round: the pieces of a tokenizer.json, where scores can express its merges.
ScoredPieces pieces_of_merges(const nlohmann::json& tokenizer);

}  // namespace tessera::tokenize
