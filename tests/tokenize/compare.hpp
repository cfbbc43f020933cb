// Stored results of the reference libraries (tests/reference/tokenizers_small.py) against ours.
// Include it after the imports.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "folder.hpp"

namespace tessera::testing {

using Json = nlohmann::json;
using Ids = std::vector<tokenize::TokenId>;

inline const std::string tokenizer_data =
    std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/tokenizers/";

inline Json read_stored(const std::string& file) {
  std::ifstream stream(file);
  return Json::parse(stream);
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

/// The texts of texts.json, those that are not UTF-8 last.
struct StoredTexts {
  std::vector<std::string> texts;
  std::size_t valid = 0;

  explicit StoredTexts(const std::string& folder) {
    const Json stored = read_stored(folder + "texts.json");
    texts = stored.at("texts");
    valid = texts.size();
    for (const std::string hex : stored.at("broken")) {
      texts.push_back(from_hex(hex));
    }
  }
};

inline Ids parse_ids(const std::string& text) {
  std::istringstream stream(text);
  Ids ids;
  for (tokenize::TokenId id = 0; stream >> id;) {
    ids.push_back(id);
  }
  return ids;
}

inline std::string shown_ids(const Ids& ids) {
  std::string text;
  for (const tokenize::TokenId id : ids) {
    text += (text.empty() ? "" : " ") + std::to_string(id);
  }
  return text;
}

/// A file with fields replaced: {"model.unk_token": null}.
inline std::string patched_file(const Folder& scratch, const std::string& file, const Json& patch) {
  Json json = read_stored(file);
  for (const auto& [path, value] : patch.items()) {
    Json* place = &json;
    std::istringstream parts(path);
    for (std::string part; std::getline(parts, part, '.');) {
      place = &(*place)[part];
    }
    *place = value;
  }
  return scratch.write("tokenizer.json", json.dump());
}

/// The reference's offsets are of characters, which tokens of bytes may be a part of.
inline tokenize::ByteRange whole_characters(const std::string& text, tokenize::ByteRange range) {
  const auto within = [&](std::int64_t at) {
    return at < static_cast<std::int64_t>(text.size()) &&
           (static_cast<unsigned char>(text[static_cast<std::size_t>(at)]) & 0xC0) == 0x80;
  };
  for (; range.begin < range.end && within(range.begin); --range.begin) {
  }
  for (; range.begin < range.end && within(range.end); ++range.end) {
  }
  return range;
}

/// What differs from a stored case, at most three texts; empty: nothing.
inline std::string differences(const tokenize::Tokenizer& tokenizer, const Json& expected,
                               const StoredTexts& stored) {
  const std::vector<std::string>& texts = stored.texts;
  std::string report;
  int count = 0;
  const auto differs = [&](std::size_t i, const char* what, const std::string& got,
                           const std::string& wanted) {
    if (got != wanted && ++count <= 3) {
      report += std::string(what) + " of text " + std::to_string(i) + " '" + texts[i] +
                "'\n  got    " + got + "\n  wanted " + wanted + "\n";
    }
  };
  const auto value = [&](const char* name, std::size_t i, const std::string& usual) {
    const Json& one = expected.at(name).at(i);
    return one.is_null() ? usual : one.get<std::string>();
  };
  const std::size_t size = expected.at("plain").size();
  for (std::size_t i = 0; i < size; ++i) {
    const Ids plain = tokenizer.encode(texts[i], {.add_special = false, .parse_special = false});
    if (!expected.contains("ids")) {
      differs(i, "ids without special tokens", shown_ids(plain), value("plain", i, ""));
      continue;
    }
    const std::string wanted = value("ids", i, "");
    const bool adds = !expected.value("/options/special_tokens"_json_pointer, Json()).is_array();
    const Ids ids = tokenizer.encode(texts[i], {.add_special = adds});
    differs(i, "ids", shown_ids(ids), wanted);
    differs(i, "ids without special tokens", shown_ids(plain), value("plain", i, wanted));
    const Ids reference = parse_ids(wanted);
    const std::string text = tokenizer.decode(reference);
    const std::string usual = value("text", i, texts[i]);
    if (i < stored.valid || !expected.at("text").at(i).is_null()) {
      differs(i, "text", text, usual);
    }
    if (expected.contains("skipped")) {
      differs(i, "text without special tokens", tokenizer.decode(reference, true),
              value("skipped", i, text));
    }
    if (expected.contains("offsets") && i < stored.valid) {
      std::string offsets;
      for (const tokenize::ByteRange& exact :
           tokenizer.encode_with_offsets(texts[i], {.add_special = adds}).offsets) {
        const tokenize::ByteRange range = whole_characters(texts[i], exact);
        offsets += (offsets.empty() ? "" : " ") + std::to_string(range.begin) + "-" +
                   std::to_string(range.end);
      }
      differs(i, "offsets", offsets, value("offsets", i, ""));
    }
  }
  return count == 0 ? "" : std::to_string(count) + " differences\n" + report;
}

}  // namespace tessera::testing
