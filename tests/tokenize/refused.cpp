// Files that are damaged or need what is not supported: each is an error that names field and
// value.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.options;
import tessera.tokenize;

#include "compare.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tokenize;
using Catch::Contains;
using Catch::StartsWith;

namespace {

/// The error of a file in which fields are replaced, behind the file's name.
std::string error_with(const std::string& base, const Json& patch) {
  const Folder scratch;
  const std::string file = patched_file(scratch, tokenizer_data + base, patch);
  const std::string error = error_of([&] { open_tokenizer(file); });
  return error.starts_with(file) ? error.substr(file.size()) : error;
}

}  // namespace

TEST_CASE("a part of tokenizer.json that is not supported is named") {
  CHECK_THAT(
      error_with("byte_level.json", {{"normalizer", {{"type", "Cyrillic"}}}}),
      StartsWith(": tokenizer.normalizer.type: is not supported (expected one of Sequence, NFC"));
  CHECK_THAT(
      error_with("byte_level.json",
                 {{"pre_tokenizer",
                   {{"type", "Sequence"}, {"pretokenizers", {{{"type", "UnicodeScripts"}}}}}}}),
      Contains("tokenizer.pre_tokenizer.pretokenizers[0].type: is not supported") &&
          Contains("got \"UnicodeScripts\""));
  CHECK_THAT(error_with("byte_level.json", {{"decoder", {{"type", "CTC"}}}}),
             Contains("tokenizer.decoder.type"));
  CHECK_THAT(error_with("byte_level.json", {{"post_processor", {{"type", "Other"}}}}),
             Contains("tokenizer.post_processor.type"));
  CHECK_THAT(error_with("byte_level.json", {{"model.dropout", 0.1}}),
             Contains("tokenizer.model.dropout: is not supported") && Contains("got 0.1"));
  CHECK_THAT(error_with("byte_level.json", {{"model.new_thing", true}}),
             Contains("tokenizer.model.new_thing: the field is not supported (got true)"));
  CHECK_THAT(error_with("byte_level.json", {{"model.type", "Other"}}),
             Contains("tokenizer.model.type"));
  CHECK_THAT(error_with("byte_level.json", {{"normalizer", {{"type", "NFC"}, {"form", 2}}}}),
             Contains("tokenizer.normalizer.form: the field is not supported (got 2)"));
  CHECK_THAT(error_with("byte_level.json", {{"pre_tokenizer",
                                             {{"type", "Split"},
                                              {"pattern", {{"String", "x"}}},
                                              {"behavior", "Merged"},
                                              {"invert", false}}}}),
             Contains("tokenizer.pre_tokenizer.behavior: is not supported"));
}

TEST_CASE("an invalid regular expression is named with its field") {
  const auto error = [](const std::string& pattern) {
    return error_with("byte_level.json", {{"pre_tokenizer",
                                           {{"type", "Split"},
                                            {"pattern", {{"Regex", pattern}}},
                                            {"behavior", "Isolated"},
                                            {"invert", false}}}});
  };
  CHECK_THAT(
      error("a(b"),
      StartsWith(": tokenizer.pre_tokenizer.pattern.Regex: 'a(b' is not a regular expression"));
  CHECK_THAT(error("[a-z&&[^b]]"), Contains("the intersection of classes (&&) is not supported"));
  CHECK_THAT(error("[a[bc]]"), Contains("a class within a class is not supported"));
  CHECK_THAT(error("[\\W]"), Contains("\\W or \\H within a class is not supported"));
  CHECK_THAT(error("\\p{Klingon}"), Contains("is not a regular expression that PCRE2 accepts"));
}

TEST_CASE("ids and merges that do not fit the vocabulary are named") {
  const Json file = read_stored(tokenizer_data + "byte_level.json");
  Json vocab = file.at("model").at("vocab");
  vocab["twin"] = 5;
  CHECK_THAT(error_with("byte_level.json", {{"model.vocab", vocab}}),
             Contains("tokenizer.model.vocab: the tokens") && Contains("have the same id, 5"));
  vocab["twin"] = std::int64_t{1} << 40;
  CHECK_THAT(error_with("byte_level.json", {{"model.vocab", vocab}}),
             Contains("token 'twin' has no valid id") && Contains("got 1099511627776"));
  vocab["twin"] = -1;
  CHECK_THAT(error_with("byte_level.json", {{"model.vocab", vocab}}), Contains("got -1"));
  CHECK_THAT(error_with("byte_level.json", {{"model.merges", {"t h", "nowhere h"}}}),
             Contains("tokenizer.model.merges[1]: the token 'nowhere' is not in the vocabulary"));
  CHECK_THAT(error_with("byte_level.json", {{"model.merges", {"z q"}}}),
             Contains("merges[0]: the token 'zq' is not in the vocabulary"));
  CHECK_THAT(error_with("byte_level.json", {{"model.merges", {"t h e"}}}),
             Contains("merges[0]: 't h e' is not two tokens with a space between them"));
  CHECK_THAT(error_with("byte_level.json", {{"model.merges", {7}}}),
             Contains("merges[0]: is not a pair"));
  CHECK_THAT(error_with("word_piece.json", {{"model.unk_token", "nowhere"}}),
             Contains("tokenizer.model.unk_token: the token 'nowhere' is not in the vocabulary"));
  CHECK_THAT(error_with("unigram.json", {{"model.unk_id", 100000}}),
             Contains("tokenizer.model.unk_id: is not supported (expected an integer from 0 to"));
  CHECK_THAT(error_with("unigram.json", {{"model.vocab", {{"a"}}}}),
             Contains("tokenizer.model.vocab[0]"));

  Json added = file.at("added_tokens");
  Json again = added.at(1);
  again["id"] = 5000;
  added.push_back(again);
  CHECK(error_with("byte_level.json", {{"added_tokens", added}}) == "no error");
  vocab = file.at("model").at("vocab");
  vocab["far"] = vocab.size() + 3;  // the ids of added tokens reach it
  added.back() = {{"id", 9000}, {"content", "new"}, {"special", true}};
  CHECK_THAT(error_with("byte_level.json", {{"model.vocab", vocab}, {"added_tokens", added}}),
             Contains("the tokens 'far' and '") && Contains("have the same id"));
  added.back() = {{"content", "new"}};
  CHECK_THAT(error_with("byte_level.json", {{"added_tokens", added}}), Contains(".id: is missing"));

  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const auto ends = [&](const Json& ids) {
    return Json{{"type", "TemplateProcessing"},
                {"single", {begin, text}},
                {"pair", Json::array()},
                {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", ids}, {"tokens", {"<s>"}}}}}}};
  };
  CHECK_THAT(error_with("byte_level.json", {{"post_processor", ends({99999})}}),
             Contains("special_tokens.'<s>'.ids: the id 99999 is not in the vocabulary"));
  CHECK_THAT(error_with("byte_level.json", {{"post_processor", ends(nullptr)}}),
             Contains("ids: is missing"));
  CHECK_THAT(
      error_with(
          "word_piece.json",
          {{"post_processor",
            {{"type", "BertProcessing"}, {"cls", {"[CLS]", 99999}}, {"sep", {"[SEP]", 3}}}}}),
      Contains("tokenizer.post_processor.cls: the id 99999 is not in the vocabulary"));
}

TEST_CASE("a truncated or damaged file is an error, never more") {
  const Folder scratch;
  for (const char* const name :
       {"byte_level.json", "precompiled.json", "unigram.model", "small.tiktoken"}) {
    const std::string whole = read_file(tokenizer_data + name);
    const std::string file = scratch / name;
    const PluginOptions options(std::string(name).ends_with("tiktoken")
                                    ? R"({"pattern": "gpt2", "special_tokens": ["<|a|>"]})"
                                    : "{}");
    INFO(name);
    for (const std::size_t part : {0, 1, 10, 500, 3000, 5000}) {
      scratch.write(name, whole.substr(0, part));
      INFO(part);
      CHECK_THAT(error_of([&] { open_tokenizer(file, options); }), StartsWith(file));
    }
    // Any change is read or refused.
    std::uint32_t state = 7;
    for (int i = 0; i < 60; ++i) {
      std::string damaged = whole;
      for (int k = 0; k < 3; ++k) {
        state = state * 1664525 + 1013904223;
        damaged[(state >> 8) % damaged.size()] = static_cast<char>(state >> 3);
      }
      scratch.write(name, damaged);
      error_of([&] {
        const auto tokenizer = open_tokenizer(file, options).tokenizer;
        static_cast<void>(
            tokenizer->decode(tokenizer->encode("Some text, 123 \xE2\x9D\xA4\xEF\xB8\x8F.")));
      });
    }
  }
  CHECK_THAT(error_of([&] { open_tokenizer(scratch / "none"); }),
             Contains("there is no such file or folder"));
}

TEST_CASE("a file of ranks that is wrong is named with its line") {
  const Folder scratch;
  const std::string whole = read_file(tokenizer_data + "small.tiktoken");
  const auto error = [&](const std::string& content,
                         const char* options =
                             R"({"pattern": "gpt2", "special_tokens": ["<|a|>"]})") {
    const std::string file = scratch.write("t.tiktoken", content);
    const std::string text = error_of([&] { open_tokenizer(file, PluginOptions(options)); });
    return text.starts_with(file) ? text.substr(file.size()) : text;
  };
  CHECK(error(whole) == "no error");
  CHECK_THAT(error(whole + "abc\n"), Contains("'abc' is not a token in base64 and its rank"));
  CHECK_THAT(error(whole + "YWJj! 9000\n"), Contains("is not base64"));
  CHECK_THAT(error(whole + "YWJjZGVm 0\n"), Contains("the rank 0 is there twice"));
  CHECK_THAT(error(whole + "YWJjZGVm 99999999999\n"),
             Contains("the rank 99999999999 is not valid"));
  CHECK_THAT(error(whole + "IQ== 9000\n"), Contains("have the same bytes"));
  CHECK_THAT(error("IQ== 0\n"), Contains("no token stands for byte 0x00"));
  CHECK_THAT(error(whole, "{}"), Contains("nothing in it says how a text is divided into words") &&
                                     Contains("set the option pattern"));
  CHECK_THAT(error(whole, R"({"pattern": "a(b"})"),
             Contains("pattern: 'a(b' is not a regular expression"));
}

TEST_CASE("an id without a token is not decoded") {
  for (const char* const file : {"byte_level.json", "word_piece.json", "unigram.model"}) {
    const auto tokenizer = open_tokenizer(tokenizer_data + file).tokenizer;
    for (const TokenId id : {-1, static_cast<TokenId>(tokenizer->vocab_size())}) {
      CHECK_THAT(error_of([&] { static_cast<void>(tokenizer->decode(Ids{id})); }),
                 Contains("there is no token " + std::to_string(id)));
      CHECK_FALSE(tokenizer->token(id));
      CHECK_FALSE(tokenizer->is_special(id));
    }
  }
}

TEST_CASE("tables and ranks that lead beyond a file are refused") {
  // The library would read wherever the table of a normalizer leads.
  const Folder scratch;
  const std::string damaged = read_file(TESSERA_SOURCE_DIR
                                        "/tests/fuzz/corpus/sentencepiece/"
                                        "found-table-out-of-bounds");
  CHECK_THAT(error_of([&] { open_tokenizer(scratch.write("tokenizer.model", damaged)); }),
             Contains("it is not a SentencePiece model (it is damaged)"));
  const std::string ranks = read_file(tokenizer_data + "small.tiktoken") + "YWJjZGVm 6000000\n";
  CHECK_THAT(error_of([&] {
               open_tokenizer(scratch.write("t.tiktoken", ranks),
                              PluginOptions(R"({"pattern": "gpt2"})"));
             }),
             Contains("the rank 6000000 is not valid (expected 0 to 65535)"));
}
