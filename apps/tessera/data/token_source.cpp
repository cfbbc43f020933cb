module;
#include <memory>
#include <string>
#include <utility>
module tessera.app.data;

import tessera.app.config;

namespace tessera::app {

OpenedSource open_source(const DataConfig& data, std::int64_t vocab) {
  if (!data.tokens.empty()) {
    return {std::make_unique<Tokens>(Tokens::from_npy(data.tokens, vocab))};
  }
  TextFiles found = find_text_files(data.text);
  // The only tokenizer, "bytes", needs no pass over the text.
  return {std::make_unique<Tokens>(Tokens::from_bytes(found.files)), std::move(found.left_out)};
}

std::int64_t tokenizer_vocab(const DataConfig& data) {
  return data.tokens.empty() ? make_tokenizer(data.tokenizer)->vocab() : 0;
}

std::string source_key(const DataConfig& data) {
  return data.tokens.empty() ? "data.text" : "data.tokens";
}

}  // namespace tessera::app
