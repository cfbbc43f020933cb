// Files of tokenizers: each is opened, and encodes and decodes some texts.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "target.hpp"

import tessera.base;
import tessera.options;
import tessera.tokenize;

using namespace tessera;

namespace {

void use(const tokenize::Tokenizer& tokenizer) {
  const std::vector<std::string> texts = {
      "",
      " ",
      "Hello, world! It's 12345 o'clock.\n\n  def f(x):\n\treturn x\r\n",
      "\xc3\xa9\xcc\x81 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb "
      "\xef\xac\x81 \xe2\x85\xa3",
      "<s></s><unk><|endoftext|><|im_start|>[CLS][MASK]\xff\xfe\xc3",
      std::string(200, 'a') + std::string(50, '\n')};
  for (const std::string& text : texts) {
    const tokenize::Encoding encoding = tokenizer.encode_with_offsets(text);
    fuzz::expect(encoding.ids.size() == encoding.offsets.size(), "tokenizer: a token has no place");
    for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
      fuzz::expect(encoding.ids[i] >= 0 && encoding.ids[i] < tokenizer.vocab_size(),
                   "tokenizer: an id beyond the vocabulary");
      fuzz::expect(encoding.offsets[i].begin >= 0 &&
                       encoding.offsets[i].begin <= encoding.offsets[i].end &&
                       encoding.offsets[i].end <= static_cast<std::int64_t>(text.size()),
                   "tokenizer: a token's place is not in the text");
    }
    static_cast<void>(tokenizer.decode(encoding.ids));
    static_cast<void>(tokenizer.decode(encoding.ids, true));
  }
}

void open_and_use(const std::string& path, const PluginOptions& options = PluginOptions()) {
  const tokenize::OpenedTokenizer opened = tokenize::open_tokenizer(path, options);
  use(*opened.tokenizer);
}

const fuzz::Target tokenizer_json{
    "tokenizer_json",
    [](std::string_view input) { open_and_use(fuzz::file_of(input, "tokenizer.json")); },
    {"tests/reference/data/tokenizers/byte_fallback.json",
     "tests/reference/data/tokenizers/byte_level.json",
     "tests/reference/data/tokenizers/end_of_word.json",
     "tests/reference/data/tokenizers/precompiled.json",
     "tests/reference/data/tokenizers/prefixed.json",
     "tests/reference/data/tokenizers/unigram.json",
     "tests/reference/data/tokenizers/word_level.json",
     "tests/reference/data/tokenizers/word_piece.json"}};

/// The files beside a tokenizer, which say what its special tokens and templates are.
const fuzz::Target tokenizer_config{
    "tokenizer_config", [](std::string_view input) {
      static const std::string folder = [] {
        const std::string made = fuzz::folder_of("tokenizer");
        std::ofstream(made + "/tokenizer.json")
            << std::ifstream(TESSERA_SOURCE_DIR "/tests/reference/data/tokenizers/word_level.json")
                   .rdbuf();
        return made;
      }();
      for (const char* const file : {"tokenizer_config.json", "special_tokens_map.json",
                                     "generation_config.json", "added_tokens.json"}) {
        fuzz::file_of(input, std::string("tokenizer/") + file);
      }
      open_and_use(folder);
    }};

const fuzz::Target tiktoken{
    "tiktoken",
    [](std::string_view input) {
      open_and_use(fuzz::file_of(input, "t.tiktoken"),
                   PluginOptions(R"({"pattern": "gpt2", "special_tokens": ["<s>"]})"));
    },
    {"tests/reference/data/tokenizers/small.tiktoken"}};

const fuzz::Target tekken{
    "tekken", [](std::string_view input) { open_and_use(fuzz::file_of(input, "tekken.json")); }};

const fuzz::Target sentencepiece{
    "sentencepiece",
    [](std::string_view input) { open_and_use(fuzz::file_of(input, "tokenizer.model")); },
    {"tests/reference/data/tokenizers/bpe.model", "tests/reference/data/tokenizers/unigram.model"}};

const fuzz::Target gguf_tokenizer{
    "gguf_tokenizer",
    [](std::string_view input) { open_and_use(fuzz::file_of(input, "model.gguf")); },
    {"tests/reference/data/gguf/byte_level.gguf", "tests/reference/data/gguf/sentencepiece.gguf"}};

}  // namespace
