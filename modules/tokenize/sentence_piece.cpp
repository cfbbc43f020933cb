module;
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

/// A model of SentencePiece, by its library.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  using Load = std::function<sentencepiece::util::Status(sentencepiece::SentencePieceProcessor&)>;

  SentencePieceTokenizer(const Load& load, const std::string& where, PluginOptions& options,
                         const FolderDefaults& defaults) {
    if (const auto status = load(processor_); !status.ok()) {
      fail_input(
          {.thing = where,
           .wrong = fmt::format("it is not a SentencePiece model ({})", shown(status.message()))});
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

std::unique_ptr<Tokenizer> sentence_piece_tokenizer(const std::string& file, PluginOptions& options,
                                                    const FolderDefaults& defaults) {
  // Looked at here: the library says only that it cannot parse a file that is not there.
  if (!std::filesystem::is_regular_file(file)) {
    fail_input({.thing = file, .wrong = "it is not a regular file that can be read"});
  }
  return std::make_unique<SentencePieceTokenizer>(
      [&](sentencepiece::SentencePieceProcessor& processor) { return processor.Load(file); }, file,
      options, defaults);
}

std::unique_ptr<Tokenizer> sentence_piece_tokenizer_of(const std::string& bytes,
                                                       const std::string& where,
                                                       PluginOptions& options,
                                                       const FolderDefaults& defaults) {
  return std::make_unique<SentencePieceTokenizer>(
      [&](sentencepiece::SentencePieceProcessor& processor) {
        return processor.LoadFromSerializedProto(bytes);
      },
      where, options, defaults);
}

}  // namespace tessera::tokenize
