module;
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/input_file.hpp>
#include <tessera/protobuf.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "added_tokens.hpp"
#include "utf8.hpp"
module tessera.tokenize;

import tessera.base;
import :built_in;

namespace tessera::tokenize {
namespace {

/// What is wrong with what the library was asked to do; empty: nothing. Parts of it throw.
std::string problem_of(const std::function<sentencepiece::util::Status()>& call) {
  try {
    const auto status = call();
    const std::string message = status.ok() ? "" : status.message();
    return message.empty() && !status.ok() ? "no reason is given" : message;
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Whether the table of a normalizer stays within its bounds, which the library does not look at:
/// a trie as a double array (the library Darts), and the texts to which its values lead.
bool is_sound_table(std::string_view map) {
  std::uint32_t size = 0;
  if (map.size() < 4) {
    return map.empty();
  }
  std::memcpy(&size, map.data(), 4);
  if (size % 4 != 0 || size < 4 || size > map.size() - 4) {
    return false;
  }
  std::vector<std::uint32_t> units(size / 4);
  std::memcpy(units.data(), map.data() + 4, size);
  const std::size_t texts = map.size() - 4 - size;
  std::vector<bool> seen(units.size());
  std::vector<std::uint32_t> open = {0};  // units that a text can lead to
  while (!open.empty()) {
    const std::uint32_t at = open.back();
    open.pop_back();
    const std::uint32_t unit = units[at];
    const std::uint32_t next = at ^ (unit >> 10U) << ((unit & (1U << 9U)) >> 6U);
    if ((next | 0xFFU) >= units.size() ||
        (at != 0 && (unit & 0x100U) != 0 && (units[next] & 0x7FFFFFFFU) >= texts)) {
      return false;
    }
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t child = next ^ byte;
      if ((units[child] & 0x800000FFU) == byte && !seen[child]) {
        seen[child] = true;
        open.push_back(child);
      }
    }
  }
  return true;
}

/// Whether the library can be given this model: it is a message, and its tables are sound.
bool is_sound_model(std::string_view bytes) {
  constexpr std::uint32_t normalizer = 3, denormalizer = 5, charsmap = 2;
  while (const auto part = protobuf::take_field(bytes)) {
    std::string_view fields =
        part->number == normalizer || part->number == denormalizer ? part->bytes : "";
    while (const auto field = protobuf::take_field(fields)) {
      if (field->number == charsmap && !is_sound_table(field->bytes)) {
        return false;
      }
    }
    if (!fields.empty()) {
      return false;
    }
  }
  return bytes.empty();
}

/// A model of SentencePiece, by its library.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const std::string& where, PluginOptions& options,
                         const FolderDefaults& defaults) {
    const std::string problem = !is_sound_model(model) ? "it is damaged" : problem_of([&] {
      return processor_.LoadFromSerializedProto(model);
    });
    if (!problem.empty()) {
      fail_input({.thing = where,
                  .wrong = fmt::format("it is not a SentencePiece model ({})", shown(problem))});
    }
    add_bos_ = options.flag("add_bos", defaults.add_bos.value_or(processor_.bos_id() >= 0));
    add_eos_ = options.flag("add_eos", defaults.add_eos.value_or(false));
    if (add_bos_ && processor_.bos_id() < 0) {
      options.refuse("add_bos is true, and the model has no token for the beginning of a text");
    }
    if (add_eos_ && processor_.eos_id() < 0) {
      options.refuse("add_eos is true, and the model has no token for the end of a text");
    }
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id)) {
        controls_.add({.content = processor_.IdToPiece(id), .id = id, .special = true},
                      processor_.IdToPiece(id));
      }
    }
  }

  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<TokenId> id(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    return processor_.IdToPiece(id) == token ? std::optional<TokenId>(id) : std::nullopt;
  }
  std::optional<std::string> token(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? std::optional(processor_.IdToPiece(id)) : std::nullopt;
  }
  bool is_special(TokenId id) const override {
    return id >= 0 && id < vocab_size() && processor_.IsControl(id);
  }
  SpecialTokens special_tokens() const override {
    const auto known = [](int id) { return id < 0 ? std::nullopt : std::optional<TokenId>(id); };
    return {.bos = known(processor_.bos_id()),
            .eos = known(processor_.eos_id()),
            .pad = known(processor_.pad_id()),
            .unknown = known(processor_.unk_id())};
  }

  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
                 std::vector<ByteRange>* offsets) const override {
    const auto add = [&](TokenId id, std::int64_t begin, std::int64_t end) {
      ids.push_back(id);
      if (offsets != nullptr) {
        offsets->push_back({begin, end});
      }
    };
    const auto size = static_cast<std::int64_t>(text.size());
    if (options.add_special && add_bos_) {
      add(processor_.bos_id(), 0, 0);
    }
    std::vector<Section> sections;
    if (options.parse_special && !controls_.empty()) {
      // The names of tokens are ASCII, so they are found in a text that is not valid, too.
      controls_.find(text, true, sections);
    } else {
      sections.push_back({{0, static_cast<std::uint32_t>(size)}, -1});
    }
    for (const Section& section : sections) {
      if (section.id >= 0) {
        add(section.id, section.piece.begin, section.piece.end);
        continue;
      }
      const std::string_view part =
          text.substr(section.piece.begin, section.piece.end - section.piece.begin);
      if (offsets == nullptr) {
        std::vector<int> part_ids;
        check(processor_.Encode(part, &part_ids));
        ids.insert(ids.end(), part_ids.begin(), part_ids.end());
        continue;
      }
      sentencepiece::ImmutableSentencePieceText pieces;
      check(processor_.Encode(part, pieces.mutable_proto()));
      for (const auto& piece : pieces.pieces()) {
        add(static_cast<TokenId>(piece.id()), std::int64_t{section.piece.begin} + piece.begin(),
            std::int64_t{section.piece.begin} + piece.end());
      }
    }
    if (options.add_special && add_eos_) {
      add(processor_.eos_id(), size, size);
    }
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    // The library leaves control tokens out; where they are to be seen, it decodes what is between.
    std::string text;
    std::vector<int> part;
    const auto end_part = [&] {
      std::string decoded;
      check(processor_.Decode(part, &decoded));
      text += decoded;
      part.clear();
    };
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocab_size()) {
        fail_input({.thing = "tokenizer",
                    .wrong = fmt::format("there is no token {}", id),
                    .expected = fmt::format("0 to {}", vocab_size() - 1)});
      }
      if (!processor_.IsControl(id)) {
        part.push_back(id);
      } else if (!skip_special) {
        end_part();
        text += processor_.IdToPiece(id);
      }
    }
    end_part();
    return text;
  }

 private:
  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) {
      fail_input(
          {.thing = "tokenizer",
           .wrong = fmt::format("SentencePiece cannot do it ({})", shown(status.message()))});
    }
  }

  sentencepiece::SentencePieceProcessor processor_;
  AddedTokens controls_;
  bool add_bos_ = false, add_eos_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> sentence_piece_tokenizer_of(const std::string& bytes,
                                                       const std::string& where,
                                                       PluginOptions& options,
                                                       const FolderDefaults& defaults) {
  return std::make_unique<SentencePieceTokenizer>(bytes, where, options, defaults);
}

std::unique_ptr<Tokenizer> sentence_piece_tokenizer(const std::string& file, PluginOptions& options,
                                                    const FolderDefaults& defaults) {
  // Looked at here: the library says only that it cannot parse a file that is not there.
  if (!std::filesystem::is_regular_file(file)) {
    fail_input({.thing = file, .wrong = "it is not a regular file that can be read"});
  }
  return sentence_piece_tokenizer_of(input_text(file), file, options, defaults);
}

}  // namespace tessera::tokenize
