// Ids, offsets and texts against the libraries tokenizers, sentencepiece and tiktoken.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "skip.hpp"

import tessera.base;
import tessera.options;
import tessera.tokenize;

#include "compare.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tokenize;

TEST_CASE("the ids and texts of every kind of file are those of the reference") {
  const Json expected = read_stored(tokenizer_data + "expected.json");
  const StoredTexts texts(tokenizer_data);
  const Folder scratch;
  CHECK(expected.size() > 60);
  for (const auto& [name, one] : expected.items()) {
    INFO(name);
    std::string file = tokenizer_data + one.at("file").get<std::string>();
    if (one.contains("patch")) {
      file = patched_file(scratch, file, one.at("patch"));
    }
    std::string wrong;
    const std::string error = error_of([&] {
      const OpenedTokenizer opened =
          open_tokenizer(file, PluginOptions(one.value("options", Json::object()).dump()));
      wrong = differences(*opened.tokenizer, one, texts);
    });
    CHECK(error == "no error");
    CHECK(wrong == "");
  }
}

TEST_CASE("the ids of real tokenizers are those of the reference", "[.long]") {
  const char* const folder = std::getenv("TESSERA_TOKENIZERS");
  if (folder == nullptr) {
    skip("TESSERA_TOKENIZERS does not name a folder that tests/reference/tokenizers_real.py wrote");
    return;
  }
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string at = entry.path().string() + "/";
    if (!std::filesystem::exists(at + "expected.json")) {
      continue;
    }
    INFO(at);
    ++count;
    const Json expected = read_stored(at + "expected.json");
    const OpenedTokenizer opened =
        open_tokenizer(at + expected.at("file").get<std::string>(),
                       PluginOptions(expected.value("options", Json::object()).dump()));
    CHECK(differences(*opened.tokenizer, expected, StoredTexts(at)) == "");
  }
  CHECK(count > 0);
}
