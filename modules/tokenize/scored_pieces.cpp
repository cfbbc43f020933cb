#include "scored_pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <tessera/shown.hpp>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "utf8.hpp"

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;
using Ids = std::unordered_map<std::string_view, std::size_t>;

constexpr std::string_view space = "\xE2\x96\x81";

Json replacement(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json normalizer(bool prefixed) {
  const Json spaces = replacement(" ", space);
  return prefixed ? Json{{"type", "Sequence"},
                         {"normalizers", {{{"type", "Prepend"}, {"prepend", space}}, spaces}}}
                  : spaces;
}

Json decoder(bool prefixed) {
  Json steps = {replacement(space, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (prefixed) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

/// Calls `use` with both parts of each division of a text between two characters.
template <class Use>
void each_division(std::string_view text, const Use& use) {
  for (std::size_t at = character_at(text, 0).bytes; at < text.size();
       at += character_at(text, at).bytes) {
    use(text.substr(0, at), text.substr(at));
  }
}

/// The ids of pieces that merges may make or need.
Ids normal_ids(const std::vector<ScoredPiece>& pieces) {
  Ids ids;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].type == TokenType::normal) {
      ids.emplace(pieces[id].text, id);
    }
  }
  return ids;
}

/// The pairs that make a piece of two others, the best first; of one piece, by their lengths.
Json merges(const std::vector<ScoredPiece>& pieces, std::string& problem) {
  struct Merge {
    std::string_view first, second;
    float score;
  };
  const Ids ids = normal_ids(pieces);
  std::vector<Merge> all;
  for (const auto& [text, id] : ids) {
    const std::size_t before = all.size();
    each_division(text, [&](std::string_view first, std::string_view second) {
      if (ids.contains(first) && ids.contains(second)) {
        all.push_back({first, second, pieces[id].score});
      }
    });
    if (all.size() == before && character_at(text, 0).bytes < text.size()) {
      problem = fmt::format("no two tokens make '{}'", shown(text, 40));
    }
  }
  std::ranges::sort(all, [](const Merge& a, const Merge& b) {
    return std::tuple(b.score, b.first.size(), b.second.size(), a.first, a.second) <
           std::tuple(a.score, a.first.size(), a.second.size(), b.first, b.second);
  });
  Json list = Json::array();
  for (const Merge& merge : all) {
    list.push_back({merge.first, merge.second});
  }
  return list;
}

Json added_token(std::size_t id, const ScoredPiece& piece) {
  return {{"id", id},
          {"content", piece.text},
          {"special", piece.type != TokenType::user_defined},
          {"normalized", false},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false}};
}

/// Scores of pieces from the places of their merges. Scores have one place for each piece, and
/// join any two pieces that make another one.
std::string score_merges(const Json& model, std::vector<ScoredPiece>& pieces) {
  const Ids ids = normal_ids(pieces);
  std::unordered_map<std::string, std::unordered_set<std::size_t>> divisions;
  std::string last;
  const Json& list = model.at("merges");
  constexpr std::size_t exact = 1 << 24;  // in f32
  if (list.size() + pieces.size() > exact) {
    return "it has too many merges";
  }
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const Json& merge = list[rank];
    std::string first;
    std::string both;
    if (merge.is_string()) {
      both = merge.get<std::string>();
      first = both.substr(0, both.find(' '));
      both.erase(first.size(), 1);
    } else {
      first = merge.at(0).get<std::string>();
      both = first + merge.at(1).get<std::string>();
    }
    const auto id = ids.find(both);
    if (id == ids.end() || !ids.contains(first) || !ids.contains(both.substr(first.size()))) {
      continue;  // an added token's, whose text is found before anything is merged
    }
    if (both != last && divisions.contains(both)) {
      return fmt::format("the merges that make '{}' do not follow each other", shown(both, 40));
    }
    pieces[id->second].score = -static_cast<float>(rank);
    divisions[both].insert(first.size());
    last = std::move(both);
  }
  std::string problem;
  for (const auto& [text, id] : ids) {
    const auto known = divisions.find(std::string(text));
    each_division(text, [&](std::string_view first, std::string_view second) {
      if (ids.contains(first) && ids.contains(second) &&
          (known == divisions.end() || !known->second.contains(first.size()))) {
        problem = fmt::format("'{}' and '{}' are not merged, though their text is a token",
                              shown(first, 40), shown(second, 40));
      }
    });
    if (known == divisions.end()) {
      pieces[id].score = -static_cast<float>(list.size() + id);
      if (character_at(text, 0).bytes < text.size()) {
        problem = fmt::format("no merge makes the token '{}'", shown(text, 40));
      }
    }
  }
  return problem;
}

bool is_byte_name(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
}

/// Why the parts around the model are not those of a SentencePiece model; empty: they are.
std::string problem_around(const Json& tokenizer, bool& prefixed) {
  const Json model = tokenizer.value("model", Json::object());
  if (model.value("type", "") != "BPE" || !model.value("fuse_unk", false) ||
      model.value("ignore_merges", false)) {
    return "it is not of SentencePiece's pairs";
  }
  const Json before = tokenizer.value("normalizer", Json());
  const Json after = tokenizer.value("decoder", Json());
  prefixed = before == normalizer(true);
  if ((!prefixed && before != normalizer(false)) || after != decoder(prefixed)) {
    return "it has no name there for its normalizer and decoder";
  }
  // Where no space is left, a division at spaces divides nothing.
  Json division = tokenizer.value("pre_tokenizer", Json());
  const bool at_spaces = division.is_object() && division.value("type", "") == "Split" &&
                         division.value("pattern", Json()) == Json{{"String", " "}};
  return division.is_null() || at_spaces ? "" : "it has no name there for its pre_tokenizer";
}

}  // namespace

Json merges_of_pieces(const ScoredPieces& all, std::string& problem) {
  Json vocabulary = Json::object();
  Json added = Json::array();
  std::string unknown;
  bool bytes = false;
  for (std::size_t id = 0; id < all.pieces.size(); ++id) {
    const ScoredPiece& piece = all.pieces[id];
    if (piece.text.empty() || valid_bytes(piece.text) < piece.text.size()) {
      problem = fmt::format("the token {} is not a text", id);
      return {};
    }
    if (!vocabulary.emplace(piece.text, id).second) {
      problem = fmt::format("the token '{}' is there twice", shown(piece.text, 40));
    }
    if (piece.type == TokenType::user_defined && all.prefixed) {
      problem = fmt::format("the token '{}' divides a text without a space after it",
                            shown(piece.text, 40));
    }
    if (piece.type == TokenType::control || piece.type == TokenType::user_defined ||
        piece.type == TokenType::unknown) {
      added.push_back(added_token(id, piece));
    }
    unknown = piece.type == TokenType::unknown ? piece.text : unknown;
    bytes = bytes || piece.type == TokenType::byte;
  }
  Json pairs = merges(all.pieces, problem);
  return {{"version", "1.0"},
          {"added_tokens", std::move(added)},
          {"normalizer", normalizer(all.prefixed)},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", decoder(all.prefixed)},
          {"model",
           {{"type", "BPE"},
            {"unk_token", unknown.empty() ? Json() : Json(unknown)},
            {"fuse_unk", true},
            {"byte_fallback", bytes},
            {"vocab", std::move(vocabulary)},
            {"merges", std::move(pairs)}}}};
}

ScoredPieces pieces_of_merges(const Json& tokenizer) {
  ScoredPieces out;
  out.problem = problem_around(tokenizer, out.prefixed);
  if (!out.problem.empty()) {
    return out;
  }
  const Json& model = tokenizer.at("model");
  const auto set = [&](std::size_t id, const std::string& text, TokenType type) {
    out.pieces.resize(std::max(out.pieces.size(), id + 1));
    out.pieces[id].text = text;
    out.pieces[id].type = type;
  };
  const Json unknown = model.value("unk_token", Json());
  const bool bytes = model.value("byte_fallback", false);
  for (const auto& [text, id] : model.at("vocab").items()) {
    set(id.get<std::size_t>(), text,
        unknown == text               ? TokenType::unknown
        : bytes && is_byte_name(text) ? TokenType::byte
                                      : TokenType::normal);
  }
  for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
    const auto text = token.at("content").get<std::string>();
    const bool special = token.value("special", false);
    if (token.value("lstrip", false) || token.value("rstrip", false) ||
        token.value("single_word", false) || token.value("normalized", !special) ||
        (!special && out.prefixed)) {
      out.problem =
          fmt::format("the added token '{}' takes white space or is not special", shown(text, 40));
      return out;
    }
    // Runs of the mark of a space are merged in any case: as tokens of their own they would be
    // found in spaces too.
    const bool of_spaces =
        text.find(space) != std::string::npos && model.at("vocab").contains(text);
    if (unknown != text && (special || !of_spaces)) {
      set(token.at("id").get<std::size_t>(), text,
          special ? TokenType::control : TokenType::user_defined);
    }
  }
  out.problem = score_merges(model, out.pieces);
  return out;
}

}  // namespace tessera::tokenize
