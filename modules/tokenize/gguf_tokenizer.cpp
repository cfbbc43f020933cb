module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/gguf.hpp>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/protobuf.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "fields.hpp"
#include "patterns.hpp"
#include "scored_pieces.hpp"
#include "vocabulary.hpp"
module tessera.tokenize;

import tessera.base;
import tessera.options;
import :built_in;
import :open;

// The tokenizer in a GGUF file: of byte-level pairs as a tokenizer.json, of SentencePiece's pairs
// as its library's model; and the other way round.
namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

const std::string prefix = "tokenizer.ggml.";
constexpr std::string_view byte_pairs = "gpt2";
constexpr std::string_view sentence_pieces = "llama";

/// A way to divide a text before pairs are merged, by its name in GGUF files.
struct Division {
  std::string_view name;
  std::string_view pattern;  // "": that of GPT-2
  bool digits = false;       // each digit is a part, before all else
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
  std::string_view alias = {};
};

constexpr std::string_view tekken_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr Division divisions[] = {
    {.name = "gpt-2", .pattern = ""},
    {.name = "smollm", .pattern = "", .digits = true, .alias = "starcoder"},
    {.name = "llama-bpe",
     .pattern = llama3_pattern,
     .ignore_merges = true,
     .add_bos = true,
     .alias = "smaug-bpe"},
    {.name = "qwen2", .pattern = qwen_pattern, .nfc = true, .alias = "deepseek-r1-qwen"},
    {.name = "gpt-4o", .pattern = o200k_pattern},
    {.name = "tekken", .pattern = tekken_pattern, .ignore_merges = true, .add_bos = true}};

/// The pre_tokenizer of a tokenizer.json that divides in this way.
Json pre_tokenizer(const Division& division) {
  // Hugging Face's library needs all fields.
  Json bytes = {{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", true},
                {"use_regex", division.pattern.empty()}};
  Json first;
  if (division.digits) {
    first = {{"type", "Digits"}, {"individual_digits", true}};
  } else if (!division.pattern.empty()) {
    first = {{"type", "Split"},
             {"pattern", {{"Regex", division.pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  } else {
    return bytes;
  }
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({std::move(first), std::move(bytes)})}};
}

/// The fields of a tokenizer in a file's header.
class GgufFields {
 public:
  GgufFields(Json fields, std::string file) : fields_(std::move(fields)), file_(std::move(file)) {}

  [[noreturn]] void wrong(const std::string& name, const std::string& expected) const {
    const auto at = fields_.find(name);
    fail_input({.thing = fmt::format("{}: field '{}'", file_, name),
                .wrong = at == fields_.end() ? "is missing" : "is not supported",
                .expected = expected,
                .got = at == fields_.end()
                           ? ""
                           : json_shown(at->contains("value") ? (*at)["value"] : (*at)["values"])});
  }

  std::optional<std::string> text(const std::string& name) const {
    const Json* const value = find(name, "value");
    if (value != nullptr && !value->is_string()) {
      wrong(name, "a text");
    }
    return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
  }

  bool flag(const std::string& name, bool otherwise) const {
    const Json* const value = find(name, "value");
    if (value != nullptr && !value->is_boolean()) {
      wrong(name, "a boolean");
    }
    return value == nullptr ? otherwise : value->get<bool>();
  }

  /// A token's id below `count`.
  std::optional<TokenId> token(const std::string& name, std::size_t count) const {
    const Json* const value = find(name, "value");
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->is_number_integer() || *value < 0 || *value >= count) {
      wrong(name, fmt::format("a token, from 0 to {}", count - 1));
    }
    return value->get<TokenId>();
  }

  /// A list; null where there is none.
  const Json* list(const std::string& name) const { return find(name, "values"); }

  std::vector<std::string> texts(const std::string& name) const {
    const Json* const values = list(name);
    if (values == nullptr || (!values->empty() && !values->front().is_string())) {
      wrong(name, "a list of texts");
    }
    return values->get<std::vector<std::string>>();
  }

  const std::string& file() const { return file_; }
  const Json& all() const { return fields_; }

 private:
  const Json* find(const std::string& name, const char* form) const {
    const auto at = fields_.find(name);
    if (at == fields_.end()) {
      return nullptr;
    }
    if (!at->contains(form)) {
      wrong(name, std::string_view(form) == "values" ? "a list" : "a single value");
    }
    return &(*at)[form];
  }

  Json fields_;
  std::string file_;
};

struct Tokens {
  std::vector<std::string> texts;
  std::vector<TokenType> types = {};
};

Tokens tokens_of(const GgufFields& fields) {
  Tokens tokens{.texts = fields.texts(prefix + "tokens")};
  if (tokens.texts.empty() || tokens.texts.size() > most_ids) {
    fields.wrong(prefix + "tokens", fmt::format("1 to {} tokens", most_ids));
  }
  tokens.types.assign(tokens.texts.size(), TokenType::normal);
  if (const Json* const types = fields.list(prefix + "token_type"); types != nullptr) {
    if (types->size() != tokens.texts.size()) {
      fields.wrong(prefix + "token_type",
                   fmt::format("a type for each of {} tokens", tokens.texts.size()));
    }
    for (std::size_t i = 0; i < types->size(); ++i) {
      const Json& type = (*types)[i];
      if (!type.is_number_integer() || type < 1 || type > 6) {
        fields.wrong(prefix + "token_type", "types from 1 to 6");
      }
      tokens.types[i] = static_cast<TokenType>(type.get<std::int32_t>());
    }
  }
  return tokens;
}

SpecialTokens special_of(const GgufFields& fields, std::size_t count) {
  const auto token = [&](const char* name) { return fields.token(prefix + name, count); };
  SpecialTokens special{.bos = token("bos_token_id"),
                        .eos = token("eos_token_id"),
                        .pad = token("padding_token_id"),
                        .unknown = token("unknown_token_id")};
  for (const auto& stop : {special.eos, token("eot_token_id"), token("eom_token_id")}) {
    if (stop && std::ranges::find(special.stop, *stop) == special.stop.end()) {
      special.stop.push_back(*stop);
    }
  }
  return special;
}

/// The parts of a tokenizer.json that adds these tokens around each text.
Json template_of(const GgufFields& fields, const Tokens& tokens, const Division& division) {
  const SpecialTokens special = special_of(fields, tokens.texts.size());
  Json single = Json::array();
  Json known = Json::object();
  const auto add = [&](const std::optional<TokenId>& id, const std::string& what) {
    if (!id) {
      fields.wrong(prefix + what + "_token_id", "the token that is added to each text");
    }
    const std::string& name = tokens.texts[static_cast<std::size_t>(*id)];
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    known[name] = {{"id", name}, {"ids", {*id}}, {"tokens", {name}}};
  };
  if (fields.flag(prefix + "add_bos_token", division.add_bos)) {
    add(special.bos, "bos");
  }
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (fields.flag(prefix + "add_eos_token", false)) {
    add(special.eos, "eos");
  }
  return single.size() == 1 ? Json()
                            : Json{{"type", "TemplateProcessing"},
                                   {"single", std::move(single)},
                                   {"pair", Json::array()},
                                   {"special_tokens", std::move(known)}};
}

std::string tokenizer_json(const GgufFields& fields) {
  const std::string name = prefix + "pre";
  const std::optional<std::string> pre = fields.text(name);
  const auto* const division = std::ranges::find_if(divisions, [&](const Division& one) {
    return pre && (one.name == *pre || one.alias == *pre);
  });
  if (division == std::end(divisions)) {
    std::vector<std::string> known;
    for (const Division& one : divisions) {
      known.emplace_back(one.name);
    }
    fields.wrong(name, "one of " + join_words(known));
  }
  if (fields.flag(prefix + "add_space_prefix", false)) {
    fields.wrong(prefix + "add_space_prefix", "false for byte-level pairs");
  }
  const Tokens tokens = tokens_of(fields);
  Json vocabulary = Json::object();
  Json added = Json::array();
  for (std::size_t i = 0; i < tokens.texts.size(); ++i) {
    const TokenType type = tokens.types[i];
    if (type == TokenType::control || type == TokenType::user_defined) {
      added.push_back({{"id", i},
                       {"content", tokens.texts[i]},
                       {"special", type == TokenType::control},
                       {"normalized", false},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false}});
    } else if (type != TokenType::unused && !vocabulary.emplace(tokens.texts[i], i).second) {
      fail_input(
          {.thing = fmt::format("{}: field '{}tokens'", fields.file(), prefix),
           .wrong = fmt::format("the token '{}' is there twice", shown(tokens.texts[i], 40))});
    }
  }
  return json_text(Json{{"version", "1.0"},
                        {"added_tokens", std::move(added)},
                        {"normalizer", division->nfc ? Json{{"type", "NFC"}} : Json()},
                        {"pre_tokenizer", pre_tokenizer(*division)},
                        {"post_processor", template_of(fields, tokens, *division)},
                        {"decoder", pre_tokenizer(divisions[0])},
                        {"model",
                         {{"type", "BPE"},
                          {"ignore_merges", division->ignore_merges},
                          {"vocab", std::move(vocabulary)},
                          {"merges", fields.texts(prefix + "merges")}}}});
}

// Numbers of fields in SentencePiece's sentencepiece_model.proto.
namespace model_proto {
constexpr std::uint32_t pieces = 1, trainer = 2, normalizer = 3;
constexpr std::uint32_t piece = 1, score = 2, type = 3;
constexpr std::uint32_t model_type = 3, byte_fallback = 35;
constexpr std::uint32_t unknown_piece = 45, bos_piece = 46, eos_piece = 47, pad_piece = 48;
constexpr std::uint32_t name = 1, charsmap = 2, dummy_prefix = 3, remove_spaces = 4;
constexpr std::int64_t of_pairs = 2;
}  // namespace model_proto

/// A model of SentencePiece's library with these tokens.
std::string sentence_piece_model(const GgufFields& fields) {
  using protobuf::add_bytes;
  using protobuf::add_integer;
  const Tokens tokens = tokens_of(fields);
  const Json* const scores = fields.list(prefix + "scores");
  if (scores == nullptr || scores->size() != tokens.texts.size()) {
    fields.wrong(prefix + "scores",
                 fmt::format("a score for each of {} tokens", tokens.texts.size()));
  }
  std::string model;
  std::string unknown;
  for (std::size_t i = 0; i < tokens.texts.size(); ++i) {
    std::string piece;
    add_bytes(piece, model_proto::piece, tokens.texts[i]);
    protobuf::add_plain(piece, model_proto::score, (*scores)[i].get<float>());
    add_integer(piece, model_proto::type, static_cast<std::int64_t>(tokens.types[i]));
    add_bytes(model, model_proto::pieces, piece);
    unknown = tokens.types[i] == TokenType::unknown ? tokens.texts[i] : unknown;
  }
  const SpecialTokens special = special_of(fields, tokens.texts.size());
  std::string trainer;
  add_integer(trainer, model_proto::model_type, model_proto::of_pairs);
  add_integer(trainer, model_proto::byte_fallback,
              std::ranges::find(tokens.types, TokenType::byte) != tokens.types.end() ? 1 : 0);
  add_bytes(trainer, model_proto::unknown_piece, unknown);
  const auto add_special = [&](std::uint32_t field, const std::optional<TokenId>& id) {
    add_bytes(trainer, field, id ? tokens.texts[static_cast<std::size_t>(*id)] : std::string());
  };
  add_special(model_proto::bos_piece, special.bos);
  add_special(model_proto::eos_piece, special.eos);
  add_special(model_proto::pad_piece, special.pad);
  add_bytes(model, model_proto::trainer, trainer);
  std::string normalizer;
  add_bytes(normalizer, model_proto::name, "identity");
  add_integer(normalizer, model_proto::dummy_prefix,
              fields.flag(prefix + "add_space_prefix", true) ? 1 : 0);
  add_integer(normalizer, model_proto::remove_spaces, 0);
  add_bytes(model, model_proto::normalizer, normalizer);
  return model;
}

GgufFields read_fields(const std::string& file) { return {read_gguf(file).fields, file}; }

// The other way round.

Json single(const char* type, Json value) { return {{"type", type}, {"value", std::move(value)}}; }
Json several(const char* type, Json values) {
  return {{"type", type}, {"values", std::move(values)}};
}

[[noreturn]] void not_expressible(const std::string& file, const std::string& why) {
  fail_input({.thing = file,
              .wrong = "GGUF cannot express this tokenizer: " + why,
              .advice = "export the model for transformers, or with --no-tokenizer"});
}

/// A pre_tokenizer without what does not change tokens.
Json essential(const Json& json) {
  Json out = json;
  if (out.is_object()) {
    out.erase("trim_offsets");
    if (out.contains("type") && out["type"] == "ByteLevel") {
      out.emplace("use_regex", true);
    }
  }
  for (auto& item : out) {
    if (item.is_structured()) {
      item = essential(item);
    }
  }
  return out;
}

/// Makes the ids of added tokens those that Hugging Face's library counts: where they are not the
/// last ones, all tokens are in the vocabulary.
void count_added(Json& json, const Tokens& tokens) {
  Json& vocabulary = json["model"]["vocab"];
  const std::size_t first = tokens.texts.size() - json["added_tokens"].size();
  bool last = vocabulary.size() == first;
  for (const Json& one : json["added_tokens"]) {
    last = last && one.at("id") >= first;
  }
  for (std::size_t id = 0; !last && id < tokens.texts.size(); ++id) {
    vocabulary.emplace(tokens.texts[id], id);
  }
}

struct VocabularyTable {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;

  void set(std::size_t id, const std::string& text, TokenType type) {
    if (id >= texts.size()) {
      texts.resize(id + 1);
      types.resize(id + 1, static_cast<std::int32_t>(TokenType::unused));
    }
    texts[id] = text;
    types[id] = static_cast<std::int32_t>(type);
  }

  /// Names ids without a token, and those up to `vocab`. Added tokens for which the model has no
  /// row are left out. `file` begins the error for others.
  void fill(std::int64_t vocab, const std::string& file) {
    const auto rows = static_cast<std::size_t>(vocab);
    while (rows > 0 && texts.size() > rows) {
      const auto type = static_cast<TokenType>(types.back());
      if (type != TokenType::control && type != TokenType::user_defined &&
          type != TokenType::unused) {
        not_expressible(file, "it has more tokens than the model");
      }
      texts.pop_back();
      types.pop_back();
    }
    texts.resize(std::max(texts.size(), rows));
    types.resize(texts.size(), static_cast<std::int32_t>(TokenType::unused));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (types[i] == static_cast<std::int32_t>(TokenType::unused) && texts[i].empty()) {
        texts[i] = fmt::format("[PAD{}]", i);
      }
    }
  }
};

/// Of a tokenizer.json of byte-level pairs.
Json byte_pair_fields(const Json& file, const std::string& name, std::int64_t vocab) {
  const Json& model = file.at("model");
  const Json division = essential(file.value("pre_tokenizer", Json()));
  const bool ignores = model.value("ignore_merges", false);
  const Json normalizer = file.value("normalizer", Json());
  const auto* const found = std::ranges::find_if(divisions, [&](const Division& one) {
    return essential(pre_tokenizer(one)) == division && one.ignore_merges == ignores &&
           normalizer == (one.nfc ? Json{{"type", "NFC"}} : Json());
  });
  if (model.value("type", "") != "BPE" || found == std::end(divisions)) {
    not_expressible(name,
                    "it has no name there for its normalizer, its pre_tokenizer and ignore_merges");
  }
  VocabularyTable tokens;
  for (const auto& [text, id] : model.at("vocab").items()) {
    tokens.set(id.get<std::size_t>(), text, TokenType::normal);
  }
  for (const Json& one : file.value("added_tokens", Json::array())) {
    if (one.value("lstrip", false) || one.value("rstrip", false) ||
        one.value("single_word", false)) {
      not_expressible(name,
                      fmt::format("the added token '{}' takes white space, or whole words only",
                                  shown(one.value("content", ""), 40)));
    }
    tokens.set(one.at("id").get<std::size_t>(), one.at("content").get<std::string>(),
               one.value("special", false) ? TokenType::control : TokenType::user_defined);
  }
  tokens.fill(vocab, name);
  Json merges = Json::array();
  for (const Json& merge : model.at("merges")) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  return {{prefix + "model", single("text", byte_pairs)},
          {prefix + "pre", single("text", found->name)},
          {prefix + "tokens", several("text", tokens.texts)},
          {prefix + "token_type", several("i32", tokens.types)},
          {prefix + "merges", several("text", std::move(merges))}};
}

Json piece_fields(VocabularyTable tokens, std::vector<float> scores, bool prefixed,
                  std::int64_t vocab, const std::string& name) {
  tokens.fill(vocab, name);
  scores.resize(tokens.texts.size(), -10000);
  return {{prefix + "model", single("text", sentence_pieces)},
          {prefix + "pre", single("text", "default")},
          {prefix + "tokens", several("text", tokens.texts)},
          {prefix + "scores", several("f32", scores)},
          {prefix + "token_type", several("i32", tokens.types)},
          {prefix + "add_space_prefix", single("bool", prefixed)}};
}

/// Of a tokenizer.json of SentencePiece's pairs.
Json merged_piece_fields(const Json& file, const std::string& name, std::int64_t vocab) {
  const ScoredPieces all = pieces_of_merges(file);
  if (!all.problem.empty()) {
    not_expressible(name, all.problem);
  }
  VocabularyTable tokens;
  std::vector<float> scores;
  for (std::size_t id = 0; id < all.pieces.size(); ++id) {
    tokens.set(id, all.pieces[id].text, all.pieces[id].type);
    scores.push_back(all.pieces[id].score);
  }
  return piece_fields(std::move(tokens), std::move(scores), all.prefixed, vocab, name);
}

/// Of a tokenizer.json, which opened without an error.
Json merge_fields(Json file, const OpenedTokenizer& opened, std::int64_t vocab) {
  const std::string& name = opened.file.empty() ? opened.kind : opened.file;
  const std::string added = added_tokens_json(*opened.tokenizer);
  if (!added.empty()) {
    file["added_tokens"] = parse_json(added);
  }
  const Json& model = file.at("model");
  const bool of_pieces = model.value("type", "") == "BPE" && model.value("byte_fallback", false);
  return of_pieces ? merged_piece_fields(file, name, vocab) : byte_pair_fields(file, name, vocab);
}

/// Of a model of SentencePiece, which opened without an error.
Json sentence_piece_fields(const OpenedTokenizer& opened, std::int64_t vocab) {
  const std::string bytes = input_text(opened.file);
  VocabularyTable tokens;
  std::vector<float> scores;
  bool of_pairs = false;
  bool plain = true;
  bool prefixed = true;
  bool removes_spaces = true;
  const auto each = [](std::string_view message, const auto& use) {
    while (const auto field = protobuf::take_field(message)) {
      use(*field);
    }
  };
  each(bytes, [&](const protobuf::Field& part) {
    if (part.number == model_proto::pieces) {
      std::string text;
      float score = 0;
      auto type = TokenType::normal;
      each(part.bytes, [&](const protobuf::Field& field) {
        text = field.number == model_proto::piece ? std::string(field.bytes) : text;
        score = field.number == model_proto::score ? field.as_float() : score;
        type = field.number == model_proto::type ? static_cast<TokenType>(field.value) : type;
      });
      tokens.set(tokens.texts.size(), text, type);
      scores.push_back(score);
    }
    each(part.number == model_proto::trainer ? part.bytes : "", [&](const protobuf::Field& field) {
      of_pairs = of_pairs ||
                 (field.number == model_proto::model_type && field.value == model_proto::of_pairs);
    });
    each(part.number == model_proto::normalizer ? part.bytes : "",
         [&](const protobuf::Field& field) {
           plain = plain && (field.number != model_proto::charsmap || field.bytes.empty());
           prefixed = field.number == model_proto::dummy_prefix ? field.value != 0 : prefixed;
           removes_spaces =
               field.number == model_proto::remove_spaces ? field.value != 0 : removes_spaces;
         });
  });
  if (!of_pairs) {
    not_expressible(opened.file, "it is not of pairs (BPE)");
  }
  if (!plain || removes_spaces) {
    not_expressible(opened.file, plain ? "it removes white space" : "it normalizes texts");
  }
  return piece_fields(std::move(tokens), std::move(scores), prefixed, vocab, opened.file);
}

Json own_fields(const OpenedTokenizer& opened, std::int64_t vocab) {
  Json out = Json::object();
  const GgufHeader header = read_gguf(opened.file);
  for (const auto& [name, field] : header.fields.items()) {
    if (name.starts_with("tokenizer.")) {
      out[name] = field;
    }
  }
  const std::size_t count = out.at(prefix + "tokens").at("values").size();
  if (count > static_cast<std::size_t>(vocab)) {
    not_expressible(opened.file, "it has more tokens than the model");
  }
  return out;
}

}  // namespace

std::unique_ptr<Tokenizer> gguf_tokenizer(const std::string& file, PluginOptions& options) {
  const GgufFields fields = read_fields(file);
  const std::optional<std::string> model = fields.text(prefix + "model");
  if (model == byte_pairs) {
    return hugging_face_tokenizer_of(tokenizer_json(fields), file);
  }
  if (model == sentence_pieces) {
    return sentence_piece_tokenizer_of(sentence_piece_model(fields), file, options,
                                       {.add_bos = fields.flag(prefix + "add_bos_token", true),
                                        .add_eos = fields.flag(prefix + "add_eos_token", false)});
  }
  fields.wrong(prefix + "model", fmt::format("'{}' or '{}'", byte_pairs, sentence_pieces));
}

void describe_gguf(OpenedTokenizer& opened) {
  const GgufFields fields = read_fields(opened.file);
  opened.special = special_of(fields, fields.texts(prefix + "tokens").size());
  const std::string name = "tokenizer.chat_template";
  opened.chat_template = fields.text(name).value_or("");
  for (const auto& [other, field] : fields.all().items()) {
    if (other.starts_with(name + ".")) {
      opened.chat_templates[other.substr(name.size() + 1)] = fields.text(other).value_or("");
    }
  }
}

std::string gguf_as_tokenizer_json(const OpenedTokenizer& opened) {
  const GgufFields fields = read_fields(opened.file);
  const Tokens tokens = tokens_of(fields);
  Json json;
  if (fields.text(prefix + "model") == byte_pairs) {
    json = parse_json(tokenizer_json(fields));
    count_added(json, tokens);
  } else {
    const Json* const scores = fields.list(prefix + "scores");
    ScoredPieces all;
    all.prefixed = fields.flag(prefix + "add_space_prefix", true);
    for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
      all.pieces.push_back({tokens.texts[id], (*scores)[id].get<float>(), tokens.types[id]});
    }
    std::string problem;
    json = merges_of_pieces(all, problem);
    if (!problem.empty()) {
      fail_input({.thing = opened.file,
                  .wrong = "a tokenizer.json cannot express its tokenizer: " + problem,
                  .advice = "export the model as GGUF, or with --no-tokenizer"});
    }
    const Division division{.name = {}, .pattern = {}, .add_bos = true};
    json["post_processor"] = template_of(fields, tokens, division);
  }
  return json_text(json, 1);
}

std::string gguf_fields(const OpenedTokenizer& opened, std::int64_t vocab) {
  Json fields;
  if (opened.kind == "gguf") {
    fields = own_fields(opened, vocab);
  } else if (opened.kind == "tokenizer.json") {
    fields = merge_fields(parse_json(input_text(opened.file)), opened, vocab);
  } else if (opened.kind == "bytes") {
    fields = merge_fields(parse_json(hub_files(opened).at("tokenizer.json")), opened, vocab);
  } else if (opened.kind == "sentencepiece") {
    fields = sentence_piece_fields(opened, vocab);
  } else {
    not_expressible(opened.file.empty() ? opened.kind : opened.file,
                    "it is of the kind " + opened.kind);
  }
  const std::vector<TokenId> added = opened.tokenizer->encode("");
  const auto has = [&](const std::optional<TokenId>& id) {
    return id && std::ranges::find(added, *id) != added.end();
  };
  fields[prefix + "add_bos_token"] = single("bool", has(opened.special.bos));
  fields[prefix + "add_eos_token"] = single("bool", has(opened.special.eos));
  const auto token = [&](const char* name, const std::optional<TokenId>& id) {
    if (id) {
      fields[prefix + name] = single("u32", *id);
    }
  };
  token("bos_token_id", opened.special.bos);
  token("eos_token_id", opened.special.eos);
  token("padding_token_id", opened.special.pad);
  token("unknown_token_id", opened.special.unknown);
  if (!opened.chat_template.empty()) {
    fields["tokenizer.chat_template"] = single("text", opened.chat_template);
  }
  for (const auto& [name, text] : opened.chat_templates) {
    fields["tokenizer.chat_template." + name] = single("text", text);
  }
  return json_text(fields);
}

}  // namespace tessera::tokenize
