// What the tests of data share: files, stored results, a small tokenizer. Include it after the
// imports.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::testing {

using Json = nlohmann::json;
using Order = nlohmann::ordered_json;

inline const std::string chat_data =
    std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/chat/";

inline std::string read_text(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A folder of this test that goes away.
class Folder {
 public:
  Folder() {
    static int number = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("tessera-data-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

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
  return std::make_shared<const data::ChatTemplate>(read_text(chat_data + file), file);
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
