// What the tests of data share: files, stored results, a small tokenizer. Include it after the
// imports.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "folder.hpp"

namespace tessera::testing {

using Json = nlohmann::json;
using Order = nlohmann::ordered_json;

inline const std::string chat_data =
    std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/chat/";

/// A small byte-level BPE with the tokens of ChatML, of which <|im_end|> ends texts.
inline tokenize::OpenedTokenizer small_tokenizer() {
  auto opened = tokenize::open_tokenizer(std::string(TESSERA_SOURCE_DIR) +
                                         "/tests/reference/data/tokenizers/byte_level.json");
  opened.special.eos = opened.tokenizer->id("<|im_end|>");
  opened.special.bos = opened.tokenizer->id("<s>");
  opened.special.stop = {*opened.special.eos};
  return opened;
}

inline std::shared_ptr<const data::ChatTemplate> chat_template(const std::string& file) {
  return std::make_shared<const data::ChatTemplate>(read_file(chat_data + file), file);
}

/// The texts of the parts of a document that are trained.
inline std::vector<std::string> trained_parts(const data::Example& example,
                                              const tokenize::Tokenizer& tokenizer) {
  std::vector<std::string> parts;
  bool open = false;
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    if (example.trained[i] == 0) {
      open = false;
      continue;
    }
    if (!open) {
      parts.emplace_back();
    }
    open = true;
    parts.back() += tokenizer.decode({{example.ids[i]}});
  }
  return parts;
}

}  // namespace tessera::testing
