module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "decode.hpp"
#include "fields.hpp"
#include "pipeline.hpp"
#include "utf8.hpp"
module tessera.tokenize;

import tessera.base;
import :built_in;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

constexpr std::size_t most_surrounding = 256;

/// Tokens that a post-processor adds to every text.
struct TextEnds {
  std::vector<TokenId> before, after;
};

/// Where the ids of added tokens come from.
enum class AddedIds { counted, written };

/// A tokenizer.json of Hugging Face's library `tokenizers`, with the same ids and texts.
class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(const ParsedJson& parsed, const std::string& file, AddedIds added_ids,
                       const FolderDefaults& folder)
      : added_ids_(added_ids) {
    if (!parsed.problem.empty()) {
      fail_input({.thing = file, .wrong = parsed.problem});
    }
    Fields fields(parsed.value, file + ": tokenizer");
    // A program that trains cuts and pads its texts itself; transformers switches both off too.
    fields.ignore({"version", "truncation", "padding"});
    const auto part = [&](const char* name) -> const Json& {
      static const Json none;
      const Json* value = fields.find(name);
      return value == nullptr ? none : *value;
    };
    const Json& model = fields.object("model");
    PreTokenizers words = read_pre_tokenizers(part("pre_tokenizer"), fields.path("pre_tokenizer"),
                                              takes_bytes(model));
    pipeline_.normalizers = read_normalizers(part("normalizer"), fields.path("normalizer"));
    pipeline_.model = read_word_model(model, fields.path("model"), words.words_are_bytes);
    pipeline_.pre_tokenizers = std::move(words.steps);
    decoders_ = read_decoders(part("decoder"), fields.path("decoder"));
    tokens_ = pipeline_.model->tokens();
    special_.resize(tokens_.size());
    vocabulary_ = std::ranges::count_if(tokens_, [](const auto& one) { return one.has_value(); });
    if (fields.has("added_tokens")) {
      const Json& list = fields.list("added_tokens");
      for (std::size_t i = 0; i < list.size(); ++i) {
        read_added(Fields(list[i], fmt::format("{}[{}]", fields.path("added_tokens"), i)));
      }
    }
    for (const FolderToken& token : folder.tokens) {
      add_from_folder(token);
    }
    find_added();
    read_surrounding(part("post_processor"), fields.path("post_processor"));
    fields.finish();
    if (decoders_.only_byte_level) {
      for (auto& text : texts_) {
        if (text) {
          text = byte_level_decoded(*text);
        }
      }
    }
  }

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(tokens_.size()); }

  std::optional<TokenId> id(std::string_view token) const override {
    const auto added = added_.find(token);
    return added == added_.end() ? pipeline_.model->find(token) : std::optional(added->second.id);
  }

  std::optional<std::string> token(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? tokens_[static_cast<std::size_t>(id)] : std::nullopt;
  }

  bool is_special(TokenId id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
  }

  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
                 std::vector<ByteRange>* offsets) const override {
    std::vector<Source> sources;
    TokenSink sink{ids, offsets == nullptr ? nullptr : &sources};
    const auto size = static_cast<std::uint32_t>(text.size());
    const auto add_special = [&](const std::vector<TokenId>& tokens, Source source) {
      for (const TokenId token : tokens) {
        sink.add(token, source);
      }
    };
    if (options.add_special) {
      add_special(surrounding_.before, {0, 0});
    }
    pipeline_.encode(text, options.parse_special, sink);
    if (options.add_special) {
      add_special(surrounding_.after, {size, size});
    }
    if (offsets != nullptr) {
      offsets->reserve(offsets->size() + sources.size());
      for (const Source& source : sources) {
        offsets->push_back({source.begin, source.end});
      }
    }
  }

  Json added_tokens() const {
    std::map<TokenId, Json> sorted;
    for (const auto& [content, token] : added_) {
      sorted[token.id] = {{"id", token.id},
                          {"content", content},
                          {"special", token.special},
                          {"normalized", token.normalized},
                          {"single_word", token.single_word},
                          {"lstrip", token.strip_left},
                          {"rstrip", token.strip_right}};
    }
    Json list = Json::array();
    for (auto& [id, token] : sorted) {
      list.push_back(std::move(token));
    }
    return list;
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    std::vector<std::string> parts;
    std::string bytes;
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocab_size() || !texts_[static_cast<std::size_t>(id)]) {
        fail_input({.thing = "tokenizer",
                    .wrong = fmt::format("there is no token {}", id),
                    .expected = fmt::format("ids of the vocabulary, below {}", vocab_size())});
      }
      if (skip_special && special_[static_cast<std::size_t>(id)]) {
        continue;
      }
      const std::string& text = *texts_[static_cast<std::size_t>(id)];
      if (decoders_.only_byte_level) {
        bytes += text;
      } else {
        parts.push_back(text);
      }
    }
    if (decoders_.only_byte_level) {
      return valid_bytes(bytes) == bytes.size() ? bytes : repaired(bytes);
    }
    std::size_t size = 0;
    for (const std::string& part : parts) {
      size += part.size();
    }
    for (const auto& step : decoders_.steps) {
      step->apply(parts, Allowance::text_bytes(size));
    }
    std::string all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      all += i > 0 && !decoders_.present ? " " : "";
      all += parts[i];
    }
    return all;
  }

 private:
  void read_added(Fields fields) {
    AddedToken token;
    token.content = fields.text("content");
    token.id = static_cast<TokenId>(fields.integer("id", 0, most_ids - 1, -1));
    if (token.id < 0) {
      fields.wrong("id", "a token's id");
    }
    token.special = fields.flag("special", false);
    token.normalized = fields.flag("normalized", !token.special);
    token.single_word = fields.flag("single_word", false);
    token.strip_left = fields.flag("lstrip", false);
    token.strip_right = fields.flag("rstrip", false);
    fields.finish();
    add(std::move(token), fields.where());
  }

  void add_from_folder(const FolderToken& token) {
    if (const auto known = added_.find(token.content); known != added_.end() && !token.whole) {
      known->second.special = known->second.special || token.role;
      return;
    }
    add({.content = token.content,
         .special = token.special,
         .normalized = token.normalized,
         .single_word = token.single_word,
         .strip_left = token.strip_left,
         .strip_right = token.strip_right},
        token.from);
  }

  /// Gives the token its id. One that is there already gets these settings, but stays special, as
  /// in the library.
  void add(AddedToken token, const std::string& where) {
    if (token.content.empty()) {
      return;  // as the library does
    }
    const auto known = id(token.content);
    if (added_ids_ == AddedIds::counted) {
      const bool beyond = highest_added_ >= vocabulary_ || vocabulary_ == 0;
      token.id = known.value_or(static_cast<TokenId>(beyond ? highest_added_ + 1 : vocabulary_));
    }
    const auto at = static_cast<std::size_t>(token.id);
    if (at >= tokens_.size()) {
      tokens_.resize(at + 1);
      special_.resize(at + 1);
    }
    if ((known && *known != token.id) || (tokens_[at] && *tokens_[at] != token.content)) {
      fail_input({.thing = where,
                  .wrong = known && *known != token.id
                               ? fmt::format("the token '{}' has two ids, {} and {}",
                                             shown(token.content), *known, token.id)
                               : fmt::format("the tokens '{}' and '{}' have the same id, {}",
                                             shown(*tokens_[at]), shown(token.content), token.id)});
    }
    tokens_[at] = token.content;
    highest_added_ = std::max<std::int64_t>(highest_added_, token.id);
    const std::string content = token.content;
    if (const auto before = added_.find(content); before != added_.end()) {
      token.special = token.special || before->second.special;
    }
    added_.insert_or_assign(content, std::move(token));
  }

  /// Makes the added tokens known to what divides texts.
  void find_added() {
    texts_ = tokens_;
    for (const auto& [content, token] : added_) {
      const auto at = static_cast<std::size_t>(token.id);
      texts_[at] = token.normalized ? pipeline_.normalized(content) : content;
      special_[at] = token.special;
      (token.normalized ? pipeline_.normalized_added : pipeline_.added).add(token, *texts_[at]);
    }
  }

  void check_id(const Json& id, const std::string& where) const {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size() ||
        !tokens_[id.get<std::size_t>()]) {
      fail_input({.thing = where,
                  .wrong = fmt::format("the id {} is not in the vocabulary", json_shown(id)),
                  .expected = fmt::format("a token's id, below {}", vocab_size())});
    }
  }

  void read_template(Fields& fields) {
    const Json& tokens =
        fields.has("special_tokens") ? fields.object("special_tokens") : Json::object();
    fields.ignore({"pair"});
    const Json& list = fields.list("single");
    std::vector<TokenId> before;
    std::vector<TokenId> after;
    bool seen = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Fields item(list[i], fmt::format("{}[{}]", fields.path("single"), i));
      if (item.has("Sequence")) {
        Fields sequence(item.object("Sequence"), item.path("Sequence"));
        sequence.choice("id", {"A"});
        sequence.ignore({"type_id"});
        sequence.finish();
        if (std::exchange(seen, true)) {
          fail_input(
              {.thing = item.where(), .wrong = "the text is there twice, which is not supported"});
        }
      } else {
        Fields special(item.object("SpecialToken"), item.path("SpecialToken"));
        const std::string name = special.text("id");
        special.ignore({"type_id"});
        special.finish();
        const std::string where =
            fmt::format("{}.'{}'.ids", fields.path("special_tokens"), shown(name));
        const auto token = tokens.find(name);
        if (token == tokens.end() || !token->is_object() || !token->contains("ids") ||
            !(*token)["ids"].is_array()) {
          fail_input({.thing = where, .wrong = "is missing", .expected = "a list of ids"});
        }
        for (const Json& id : (*token)["ids"]) {
          check_id(id, where);
          (seen ? after : before).push_back(id.get<TokenId>());
          if (before.size() + after.size() > most_surrounding) {
            fail_input({.thing = fields.path("single"),
                        .wrong = fmt::format("it adds too many tokens (expected at most {})",
                                             most_surrounding)});
          }
        }
      }
      item.finish();
    }
    surround(before, after);
  }

  void surround(std::vector<TokenId> before, const std::vector<TokenId>& after) {
    before.insert(before.end(), surrounding_.before.begin(), surrounding_.before.end());
    surrounding_.before = std::move(before);
    surrounding_.after.insert(surrounding_.after.end(), after.begin(), after.end());
  }

  TokenId named_id(Fields& fields, const std::string& name) const {
    const Json& pair = fields.list(name);
    if (pair.size() != 2) {
      fields.wrong(name, "a token and its id");
    }
    check_id(pair[1], fields.path(name));
    return pair[1].get<TokenId>();
  }

  void read_surrounding(const Json& json, const std::string& where) {
    if (json.is_null()) {
      return;
    }
    Fields fields(json, where);
    const std::string type = fields.choice(
        "type",
        {"TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing", "Sequence"});
    if (type == "TemplateProcessing") {
      read_template(fields);
    } else if (type == "Sequence") {
      const Json& list = fields.list("processors");
      for (std::size_t i = 0; i < list.size(); ++i) {
        read_surrounding(list[i], fmt::format("{}.processors[{}]", where, i));
      }
    } else if (type != "ByteLevel") {
      const TokenId first = named_id(fields, "cls");
      surround({first}, {named_id(fields, "sep")});
    }
    fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});  // of offsets
    fields.finish();
  }

  Pipeline pipeline_;
  Decoders decoders_;
  TextEnds surrounding_;
  std::vector<std::optional<std::string>> tokens_;  // as the file writes them
  std::vector<std::optional<std::string>> texts_;   // what is decoded
  std::vector<bool> special_;
  std::map<std::string, AddedToken, std::less<>> added_;  // by what the file writes
  AddedIds added_ids_;
  std::int64_t vocabulary_ = 0;  // tokens that are not added
  std::int64_t highest_added_ = -1;
};

}  // namespace

std::unique_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file,
                                                  const FolderDefaults& defaults) {
  return std::make_unique<HuggingFaceTokenizer>(read_json_object(file), file, AddedIds::counted,
                                                defaults);
}

std::string added_tokens_json(const Tokenizer& tokenizer) {
  const auto* const own = dynamic_cast<const HuggingFaceTokenizer*>(&tokenizer);
  return own == nullptr ? std::string() : json_text(own->added_tokens());
}

std::unique_ptr<Tokenizer> hugging_face_tokenizer_of(std::string_view json,
                                                     const std::string& where) {
  return std::make_unique<HuggingFaceTokenizer>(parse_json_object(json), where, AddedIds::written,
                                                FolderDefaults());
}

}  // namespace tessera::tokenize
