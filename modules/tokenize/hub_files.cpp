module;
#include <map>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>

#include "byte_level.hpp"
module tessera.tokenize;

import tessera.base;
import :built_in;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

/// A token for each byte, with the byte as its id.
Json bytes_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[std::string(byte_level_text(static_cast<unsigned char>(byte)))] = byte;
  }
  // Hugging Face's library needs all fields.
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {
      {"version", "1.0"},
      {"added_tokens", Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", Json::array()}}}};
}

/// What transformers does not find in tokenizer.json.
Json config_of(const OpenedTokenizer& opened) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  const auto role = [&](const char* name, const std::optional<TokenId>& id) {
    if (id) {
      config[name] = opened.tokenizer->token(*id).value_or("");
    }
  };
  role("bos_token", opened.special.bos);
  role("eos_token", opened.special.eos);
  role("pad_token", opened.special.pad);
  role("unk_token", opened.special.unknown);
  if (!opened.chat_templates.empty()) {
    Json list = Json::array();
    for (const auto& [name, text] : opened.chat_templates) {
      list.push_back({{"name", name}, {"template", text}});
    }
    if (!opened.chat_template.empty()) {
      list.push_back({{"name", "default"}, {"template", opened.chat_template}});
    }
    config["chat_template"] = std::move(list);
  }
  return config;
}

}  // namespace

std::map<std::string, std::string> hub_files(const OpenedTokenizer& opened) {
  if (opened.kind != "gguf" && opened.kind != "bytes") {
    return {};
  }
  std::map<std::string, std::string> files = {
      {"tokenizer.json",
       opened.kind == "gguf" ? gguf_as_tokenizer_json(opened) : json_text(bytes_json(), 1)},
      {"tokenizer_config.json", json_text(config_of(opened), 2)}};
  if (opened.chat_templates.empty() && !opened.chat_template.empty()) {
    files.emplace("chat_template.jinja", opened.chat_template);
  }
  return files;
}

}  // namespace tessera::tokenize
