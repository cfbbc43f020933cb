// What a tokenizer owes its users, whatever its kind: offsets, parts of texts, threads, folders,
// plugins.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.tokenize;

#include "compare.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tokenize;
using Catch::Contains;

namespace {

const std::vector<std::string> all_files = {
    "byte_level.json",  "byte_fallback.json", "unigram.json",    "word_piece.json",
    "end_of_word.json", "prefixed.json",      "word_level.json", "precompiled.json",
    "unigram.model",    "bpe.model"};

std::shared_ptr<const Tokenizer> stored(const std::string& file) {
  return open_tokenizer(tokenizer_data + file).tokenizer;
}

/// "<0x0A>"
std::string byte_token(int byte) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<',
          '0',
          'x',
          digits[static_cast<std::size_t>(byte / 16)],
          digits[static_cast<std::size_t>(byte % 16)],
          '>'};
}

}  // namespace

TEST_CASE("offsets are in order and cover what the tokens stand for") {
  const StoredTexts texts(tokenizer_data);
  for (const std::string& file : all_files) {
    INFO(file);
    const auto tokenizer = stored(file);
    bool ordered = true;
    bool equal = true;
    for (const std::string& text : texts.texts) {
      const Encoding encoding = tokenizer->encode_with_offsets(text);
      equal = equal && encoding.ids == tokenizer->encode(text) &&
              encoding.ids.size() == encoding.offsets.size();
      std::int64_t before = 0;
      for (const ByteRange& range : encoding.offsets) {
        ordered = ordered && range.begin <= range.end && range.begin >= before &&
                  range.end <= static_cast<std::int64_t>(text.size());
        before = range.begin;
      }
    }
    CHECK(equal);
    CHECK(ordered);
  }
}

TEST_CASE("the tokens of bytes cover every byte of a text once") {
  const StoredTexts texts(tokenizer_data);
  const Folder scratch;
  const std::string file =
      patched_file(scratch, tokenizer_data + "byte_level.json", {{"added_tokens", Json::array()}});
  const auto tokenizer = open_tokenizer(file).tokenizer;
  for (std::size_t i = 0; i < texts.valid; ++i) {
    const std::string& text = texts.texts[i];
    std::int64_t at = 0;
    bool covers = true;
    for (const ByteRange& range : tokenizer->encode_with_offsets(text).offsets) {
      covers = covers && range.begin == at && range.end > at;
      at = range.end;
    }
    INFO(text);
    CHECK((covers && at == static_cast<std::int64_t>(text.size())));
  }
}

TEST_CASE("the tokens of a changed text have the bytes that they come from") {
  // NFC makes one character of three bytes of "e" and an accent; white space belongs to its word.
  const Folder scratch;
  const auto composed = open_tokenizer(patched_file(scratch, tokenizer_data + "byte_level.json",
                                                    {{"normalizer", {{"type", "NFC"}}}}))
                            .tokenizer;
  const std::string text = "xe\xCC\x81y";
  const Encoding encoding =
      composed->encode_with_offsets(text, {.add_special = false, .parse_special = false});
  CHECK(composed->decode(encoding.ids) == "x\xC3\xA9y");
  CHECK(encoding.offsets.front() == ByteRange{0, 1});
  for (std::size_t i = 1; i + 1 < encoding.ids.size(); ++i) {
    CHECK(encoding.offsets[i] == ByteRange{1, 4});
  }
  CHECK(encoding.offsets.back() == ByteRange{4, 5});
}

TEST_CASE("a text that comes token by token never ends within a character") {
  const StoredTexts texts(tokenizer_data);
  for (const std::string& file : all_files) {
    INFO(file);
    const auto tokenizer = stored(file);
    for (const std::string& text : texts.texts) {
      const Ids ids = tokenizer->encode(text);
      for (const bool skip : {false, true}) {
        StreamDecoder decoder(*tokenizer, skip);
        std::string all;
        bool whole = true;
        for (const TokenId id : ids) {
          const std::string part = decoder.add(id);
          whole = whole && !part.ends_with("\xEF\xBF\xBD");
          all += part;
        }
        all += decoder.finish();
        if (!whole || all != tokenizer->decode(ids, skip)) {
          FAIL_CHECK("'" << all << "' instead of '" << tokenizer->decode(ids, skip) << "'");
        }
      }
    }
  }
}

TEST_CASE("many texts by several threads have the same tokens") {
  const StoredTexts texts(tokenizer_data);
  std::vector<std::string_view> views(texts.texts.begin(), texts.texts.end());
  for (const std::string& file : all_files) {
    const auto tokenizer = stored(file);
    const auto all = encode_all(*tokenizer, views, {}, 4);
    bool equal = all.size() == views.size();
    for (std::size_t i = 0; equal && i < views.size(); ++i) {
      equal = all[i] == tokenizer->encode(views[i]);
    }
    INFO(file);
    CHECK(equal);
  }
  // The first error stops all.
  const Folder scratch;
  const auto without_unknown = open_tokenizer(
      patched_file(scratch, tokenizer_data + "unigram.json", {{"model.unk_id", nullptr}}));
  CHECK_THAT(error_of([&] { encode_all(*without_unknown.tokenizer, views, {}, 3); }),
             Contains("the model has no unk_id"));
}

TEST_CASE("a long word has the tokens of byte pair encoding by its definition") {
  // Words of 3 to 300 letters without a space. The definition: again and again the pair with the
  // lowest rank, the leftmost of them.
  const Folder scratch;
  const Json repeated = {
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"aa", 2}, {"aaaa", 3}, {"ab", 4}, {"baa", 5}}},
        {"merges", Json::array({"a a", "aa aa", "a b", "b aa"})}}}};
  std::uint32_t state = 1;
  const auto next = [&](std::uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % below;
  };
  for (const auto& [file, letters] :
       {std::pair<std::string, std::string>(tokenizer_data + "byte_level.json", "etaoinshrdlu"),
        std::pair<std::string, std::string>(scratch.write("repeated.json", repeated.dump()),
                                            "aaab")}) {
    std::map<std::pair<std::string, std::string>, std::size_t> ranks;
    const Json read = read_stored(file);
    for (const Json& merge : read.at("model").at("merges")) {
      std::string left;
      std::string right;
      if (merge.is_string()) {
        std::istringstream(merge.get<std::string>()) >> left >> right;
      } else {
        left = merge.at(0);
        right = merge.at(1);
      }
      ranks.emplace(std::pair(left, right), ranks.size());
    }
    const auto tokenizer = open_tokenizer(file).tokenizer;
    for (int i = 0; i < 100; ++i) {
      std::vector<std::string> parts;
      std::string word;
      for (std::uint32_t count = 3 + next(298); count > 0; --count) {
        word += letters[next(static_cast<std::uint32_t>(letters.size()))];
        parts.emplace_back(1, word.back());
      }
      for (;;) {
        std::size_t best = ranks.size();
        std::size_t at = 0;
        for (std::size_t k = 0; k + 1 < parts.size(); ++k) {
          const auto found = ranks.find({parts[k], parts[k + 1]});
          if (found != ranks.end() && found->second < best) {
            best = found->second;
            at = k;
          }
        }
        if (best == ranks.size()) {
          break;
        }
        parts[at] += parts[at + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      }
      std::vector<std::string> got;
      for (const TokenId id : tokenizer->encode(word)) {
        got.push_back(*tokenizer->token(id));
      }
      CHECK(got == parts);
    }
  }
}

TEST_CASE("a merge across the mark of a space keeps a text in one word") {
  // "a" and the mark are one token: "a a" is that token and "a".
  const Folder scratch;
  const Json file = {
      {"normalizer",
       {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"\xE2\x96\x81", 1}, {"a\xE2\x96\x81", 2}}},
        {"merges", Json::array({"a \xE2\x96\x81"})}}}};
  const auto tokenizer = open_tokenizer(scratch.write("tokenizer.json", file.dump())).tokenizer;
  CHECK(tokenizer->encode("a a") == Ids{2, 0});
  CHECK(tokenizer->encode(" a  a") == Ids{1, 2, 1, 0});
}

// The ids of the two tests below are those of tokenizers 0.23.3.
TEST_CASE("a character of GPT-2's alphabet that is no token falls back to its bytes") {
  const Folder scratch;
  const Json file = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"model",
       {{"type", "BPE"},
        {"byte_fallback", true},
        {"vocab", {{"<0xC4>", 0}, {"<0xA0>", 1}, {"a", 2}, {"b", 3}}},
        {"merges", Json::array()}}}};
  const auto tokenizer = open_tokenizer(scratch.write("tokenizer.json", file.dump())).tokenizer;
  CHECK(tokenizer->encode("a b") == Ids{2, 0, 1, 3});
}

TEST_CASE("white space that an added token takes is searched for added tokens of white space") {
  const Folder scratch;
  const auto added = [](int id, const char* content, bool left, bool right) {
    return Json{{"id", id},        {"content", content},  {"lstrip", left},
                {"rstrip", right}, {"normalized", false}, {"special", false}};
  };
  const Json file = {
      {"added_tokens",
       {added(4, "<r>", false, true), added(5, "  ", false, false), added(6, "<l>", true, false)}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {" ", 2}, {"x", 3}}},
        {"merges", Json::array()}}}};
  const auto tokenizer = open_tokenizer(scratch.write("tokenizer.json", file.dump())).tokenizer;
  CHECK(tokenizer->encode("a<r>  b") == Ids{0, 4, 5, 1});
  CHECK(tokenizer->encode("a<r>   b") == Ids{0, 4, 5, 2, 1});
  CHECK(tokenizer->encode("a<r>    <l>b") == Ids{0, 4, 5, 5, 6, 1});
  CHECK(tokenizer->encode("a  <l>b") == Ids{0, 5, 6, 1});
  CHECK(tokenizer->encode("<r> <l>") == Ids{4, 6});
  CHECK(tokenizer->encode("<r>\n<r>  <r>a") == Ids{4, 4, 5, 4, 0});
}

TEST_CASE("Qwen's texts are composed before special tokens are found in them") {
  // U+0338 makes one character of the ">" before it.
  const auto tokenizer =
      open_tokenizer(tokenizer_data + "small.tiktoken",
                     PluginOptions(R"({"pattern": "qwen", "special_tokens": ["<|a|>"]})"))
          .tokenizer;
  const Ids special = {*tokenizer->id("<|a|>")};
  CHECK(tokenizer->encode("<|a|>") == special);
  const Ids composed = tokenizer->encode("<|a|>\xCC\xB8");
  CHECK(tokenizer->decode(composed) == "<|a|\xE2\x89\xAF");
  CHECK(composed == tokenizer->encode("<|a|\xE2\x89\xAF"));
}

TEST_CASE("the word that replaced another one in the cache does not have its tokens") {
  const auto tokenizer = stored("byte_level.json");
  std::vector<Ids> first;
  // More words, and more text, than the cache holds.
  const auto word = [](int i) { return "w" + std::to_string(i) + std::string(i % 40, 'x'); };
  for (int i = 0; i < 100'000; ++i) {
    if (i % 500 == 0) {
      first.push_back(tokenizer->encode(word(i)));
    } else {
      static_cast<void>(tokenizer->encode(word(i)));
    }
  }
  bool equal = true;
  for (int i = 0; i < 100'000; i += 500) {
    const Ids ids = tokenizer->encode(word(i));
    equal = equal && ids == first[static_cast<std::size_t>(i / 500)] &&
            tokenizer->decode(ids) == word(i);
  }
  CHECK(equal);
}

TEST_CASE("special tokens in a text are found only where that is asked for") {
  const auto tokenizer = stored("byte_level.json");
  const TokenId special = *tokenizer->id("<|im_start|>");
  CHECK(tokenizer->is_special(special));
  CHECK_FALSE(tokenizer->is_special(*tokenizer->id("a")));
  CHECK(tokenizer->encode("<|im_start|>") == Ids{special});
  const Ids plain =
      tokenizer->encode("<|im_start|>", {.add_special = true, .parse_special = false});
  CHECK(plain.size() > 1);
  CHECK(tokenizer->decode(plain) == "<|im_start|>");
  CHECK(tokenizer->decode(Ids{special}, true) == "");
  // SentencePiece's library itself finds none; they divide the text.
  const auto pieces = stored("unigram.model");
  const Ids ids = pieces->encode("<s>the", {.add_special = false});
  CHECK(ids.front() == *pieces->id("<s>"));
  CHECK(pieces->decode(ids) == "<s>the");
  CHECK(pieces->decode(ids, true) == "the");
  CHECK(pieces->encode("<s>", {.add_special = false, .parse_special = false}).size() > 1);
}

TEST_CASE("bytes are tokens") {
  const auto tokenizer = make_tokenizer("bytes");
  CHECK(tokenizer->vocab_size() == 256);
  CHECK(tokenizer->encode("a\xFF") == Ids{97, 255});
  CHECK(tokenizer->decode(Ids{97, 255}) == "a\xFF");
  CHECK(error_of([&] { static_cast<void>(tokenizer->decode(Ids{256})); }) ==
        "tokenizer 'bytes': there is no token 256 (expected 0 to 255)");
}

TEST_CASE("a folder's other files name the special tokens and the template") {
  const Folder folder;
  std::filesystem::copy_file(tokenizer_data + "byte_level.json", folder / "tokenizer.json");
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null, "chat_template": "{{ messages }}"})");
  folder.write("special_tokens_map.json", R"({"pad_token": "<pad>"})");
  folder.write("generation_config.json", "{}");
  OpenedTokenizer opened = open_tokenizer(folder.path());
  const auto id = [&](const char* token) { return opened.tokenizer->id(token); };
  CHECK(opened.kind == "tokenizer.json");
  CHECK(opened.special.bos == id("<s>"));
  CHECK(opened.special.eos == id("</s>"));
  CHECK(opened.special.pad == id("<pad>"));
  CHECK(opened.special.stop == Ids{*id("</s>")});
  CHECK(opened.chat_template == "{{ messages }}");

  const std::string end = std::to_string(*id("<|im_end|>"));
  folder.write("generation_config.json", R"({"eos_token_id": [)" + end + "]}");
  folder.write("chat_template.jinja", "{% for m in messages %}");
  opened = open_tokenizer(folder.path());
  CHECK(opened.special.stop == Ids{*id("</s>"), *id("<|im_end|>")});
  CHECK(opened.chat_template == "{% for m in messages %}");

  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tools", "template": "b"}]})");
  std::filesystem::remove(folder / "chat_template.jinja");
  opened = open_tokenizer(folder.path());
  CHECK(opened.chat_template == "a");
  CHECK(opened.chat_templates == std::map<std::string, std::string>{{"tools", "b"}});

  folder.write("tokenizer_config.json", R"({"eos_token": {"name": "x"}})");
  CHECK_THAT(error_of([&] { open_tokenizer(folder.path()); }),
             Contains("tokenizer_config.json: eos_token: is not supported (expected a token"));
  folder.write("tokenizer_config.json", "{}");
  folder.write("generation_config.json", R"({"eos_token_id": 100000})");
  CHECK_THAT(error_of([&] { open_tokenizer(folder.path()); }),
             Contains("generation_config.json: eos_token_id: the id 100000 is not in"));
}

TEST_CASE("added tokens have the ids that transformers gives them") {
  // tests/reference/added_tokens.py
  std::ifstream stream(tokenizer_data + "ids_of_added_tokens.json");
  const auto all = nlohmann::ordered_json::parse(stream);
  CHECK(all.size() > 30);
  for (const auto& [name, one] : all.items()) {
    INFO(name);
    const Folder folder;
    for (const auto& [file, stored_content] : one.at("files").items()) {
      auto content = stored_content;
      for (int byte = 0; file == "tokenizer.json" && byte < 256; ++byte) {
        content["model"]["vocab"][byte_token(byte)] = byte;
      }
      folder.write(file, content.dump());
    }
    const OpenedTokenizer opened = open_tokenizer(folder.path());
    const Ids ids = opened.tokenizer->encode(one.at("text").get<std::string>());
    CHECK(ids == one.at("ids").get<Ids>());
    CHECK(opened.tokenizer->decode(ids, true) == one.at("skipped").get<std::string>());
    CHECK(opened.special.eos.value_or(-1) ==
          (one.at("eos").is_null() ? -1 : one.at("eos").get<TokenId>()));
    for (const auto& [token, id] : one.at("tokens").items()) {
      CHECK(opened.tokenizer->id(token) == id.get<TokenId>());
      CHECK(opened.tokenizer->token(id.get<TokenId>()) == token);
    }
  }
}

TEST_CASE("a token that only a file beside a tokenizer of another kind names is refused") {
  const Folder folder;
  std::filesystem::copy_file(tokenizer_data + "bpe.model", folder / "tokenizer.model");
  const auto error = [&](const std::string& name, const std::string& text) {
    folder.write(name, text);
    const std::string result = error_of([&] { open_tokenizer(folder.path()); });
    std::filesystem::remove(folder / name);
    return result;
  };
  CHECK(error("added_tokens.json", R"({"</s>": 2})") == "no error");
  CHECK_THAT(error("added_tokens.json", R"({"</s>": 7})"),
             Contains("added_tokens.json: the token '</s>' has the id 7 there, and 2 in"));
  CHECK_THAT(error("added_tokens.json", R"({"<more>": 900})"),
             Contains("the token '<more>' is not in the tokenizer's vocabulary") &&
                 Contains("save the tokenizer with transformers"));
  CHECK_THAT(error("tokenizer_config.json", R"({"additional_special_tokens": ["<more>"]})"),
             Contains("additional_special_tokens: the token '<more>' is not in"));
}

TEST_CASE("a tokenizer may have tokens that a model has no row for, and texts may not") {
  const OpenedTokenizer whole = open_tokenizer(tokenizer_data + "byte_level.json");
  const TokenId last = static_cast<TokenId>(whole.tokenizer->vocab_size() - 1);
  const std::string token = *whole.tokenizer->token(last);
  OpenedTokenizer marked = whole;
  marked.special = {.bos = 1, .eos = 2, .pad = last, .unknown = std::nullopt, .stop = {2, last}};
  const OpenedTokenizer opened = limited(marked, last, "folder");
  CHECK(opened.tokenizer->encode("a text") == whole.tokenizer->encode("a text"));
  CHECK(opened.tokenizer->vocab_size() == whole.tokenizer->vocab_size());
  CHECK_FALSE(opened.special.pad);
  CHECK(opened.special.stop == Ids{2});
  CHECK(error_of([&] { opened.tokenizer->encode("a text" + token); }) ==
        "tokenizer: the token '" + token + "' (id " + std::to_string(last) +
            ") at byte 6 of a text has no row in the embedding of folder (expected ids below " +
            std::to_string(last) + "); remove it from the text");
  marked.special.eos = last;
  CHECK_THAT(error_of([&] { limited(marked, last, "folder"); }), Contains("which ends texts"));
  CHECK(limited(whole, last + 1, "folder").tokenizer == whole.tokenizer);
}

TEST_CASE("a run of bytes is decoded as a whole, and none continues another text") {
  // The expected texts are those of Tokenizer.decode of tokenizers 0.22.2.
  const auto tokenizer = stored("byte_fallback.json");
  const auto byte = [&](int value) { return *tokenizer->id(byte_token(value)); };
  const std::string lost = "\xEF\xBF\xBD";
  const auto streamed = [&](const std::vector<int>& before, const std::vector<int>& bytes) {
    StreamDecoder decoder(*tokenizer, true);
    Ids context;
    for (const int value : before) {
      context.push_back(byte(value));
    }
    decoder.start_after(context);
    std::string all;
    for (const int value : bytes) {
      all += decoder.add(byte(value));
    }
    return all + decoder.finish();
  };
  CHECK(streamed({}, {0x0A, 0xF0}) == lost + lost);
  CHECK(streamed({}, {0x0A, 0xF0, 0x9F, 0x8F, 0xA0}) == "\n\xF0\x9F\x8F\xA0");
  CHECK(streamed({0xF0, 0x9F, 0x8F, 0xA0}, {0x80}) == lost);
  CHECK(streamed({0xF0, 0x9F}, {0x8F, 0xA0, 0x0A}) == lost + lost + lost);
  CHECK(streamed({0xF0, 0x9F, 0x8F, 0xA0}, {0x0A}) == "\n");

  // A word after a text keeps its space, which only the first one of all lacks.
  StreamDecoder decoder(*tokenizer, true);
  const Ids words = tokenizer->encode("the the", {.add_special = false});
  decoder.start_after(Ids(words.begin(), words.begin() + 1));
  std::string rest;
  for (std::size_t i = 1; i < words.size(); ++i) {
    rest += decoder.add(words[i]);
  }
  CHECK(tokenizer->decode(Ids(words.begin(), words.begin() + 1)) + rest + decoder.finish() ==
        "the the");
}

TEST_CASE("a text is encoded and decoded") {
  const std::string folder = tokenizer_data + "byte_level.json";
  const OpenedTokenizer opened = open_tokenizer(folder);
  const Encoding encoding = opened.tokenizer->encode_with_offsets("It's a text.");
  const std::string text = opened.tokenizer->decode(encoding.ids, true);
  CHECK(text == "It's a text.");
}

TEST_CASE("the kind of a tokenizer follows from the files") {
  const auto kind = [](const std::string& path) {
    return open_tokenizer(path,
                          PluginOptions(R"({"pattern": "gpt2", "special_tokens": ["<|a|>"]})"))
        .kind;
  };
  const Folder folder;
  CHECK_THAT(error_of([&] { kind(folder.path()); }),
             Contains("there is no tokenizer in the folder"));
  std::filesystem::copy_file(tokenizer_data + "small.tiktoken", folder / "x.tiktoken");
  CHECK(kind(folder.path()) == "tiktoken");
  std::filesystem::copy_file(tokenizer_data + "small.tiktoken", folder / "tokenizer.model");
  CHECK(kind(folder.path()) == "tiktoken");
  std::filesystem::copy_file(tokenizer_data + "unigram.model", folder / "tokenizer.model",
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(open_tokenizer(folder.path()).kind == "sentencepiece");
  std::filesystem::remove(folder / "tokenizer.model");
  std::filesystem::copy_file(tokenizer_data + "unigram.model", folder / "y.model");
  CHECK_THAT(error_of([&] { kind(folder.path()); }),
             Contains("there are several tokenizers, x.tiktoken and y.model"));
}

TEST_CASE("the beginning and the end of a text have tokens where the options say so") {
  const std::string file = tokenizer_data + "unigram.model";
  const auto ids = [&](const char* options, bool add) {
    return open_tokenizer(file, PluginOptions(options))
        .tokenizer->encode("the", {.add_special = add});
  };
  const Ids plain = ids("{}", false);
  CHECK(ids("{}", true).size() == plain.size() + 1);
  CHECK(ids("{}", true).front() == 1);
  CHECK(ids(R"({"add_bos": false})", true) == plain);
  CHECK(ids(R"({"add_bos": false, "add_eos": true})", true).back() == 2);
  CHECK_THAT(error_of([&] { ids(R"({"add_boss": false})", true); }),
             Contains("did you mean 'add_bos'"));
}

TEST_CASE("a tokenizer of a plugin is made by its name") {
  plugin::host().load(TESSERA_LETTERS);
  const auto tokenizer = make_tokenizer("letters", "", PluginOptions(R"({"other": "*"})"));
  CHECK(tokenizer->encode("ab!") == Ids{1, 2, 0});
  CHECK(tokenizer->decode(Ids{1, 2, 0}) == "ab*");
  CHECK_FALSE(tokenizer->is_special(1));
  CHECK_THAT(error_of([&] { make_tokenizer("letter"); }), Contains("did you mean 'letters'"));
  CHECK_THAT(error_of([&] { make_tokenizer("letters", "", PluginOptions(R"({"others": "*"})")); }),
             Contains("did you mean 'other'"));
}
