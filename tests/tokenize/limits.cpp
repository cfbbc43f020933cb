// What a tokenizer's file may cost: patterns that backtrack, steps that make texts grow, tokens
// without end. Each is an error that names the part of the file, after bounded work.
#include <chrono>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tokenize;

#include "compare.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tokenize;
using Catch::Contains;

namespace {

const std::string words = "the quick brown fox jumps over the lazy dog ";

std::string repeated(const std::string& part, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    all += part;
  }
  return all;
}

/// Encodes the text, and decodes its tokens, with a tokenizer of single bytes and these changes.
std::string error_of_text(const Json& patch, const std::string& text) {
  const Folder scratch;
  const std::string file = patched_file(scratch, tokenizer_data + "byte_fallback.json", patch);
  return error_of([&] {
    const OpenedTokenizer opened = open_tokenizer(file);
    static_cast<void>(opened.tokenizer->decode(opened.tokenizer->encode(text)));
  });
}

Json split_by(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json sequence(const char* parts, std::size_t count, const Json& each) {
  return {{"type", "Sequence"}, {parts, std::vector<Json>(count, each)}};
}

}  // namespace

TEST_CASE("a pattern has a budget for a text, not for a match") {
  const std::string text = repeated(words, 40);
  for (const char* const pattern :
       {R"((?:.|..){19}\x00|.)", R"((?:.|[^\x00])*\x00|.)", R"((?:.?){30}.{30}\x00|.)"}) {
    INFO(pattern);
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = error_of_text({{"pre_tokenizer", split_by(pattern)}}, text);
    CHECK_THAT(error, Contains("tokenizer.json: tokenizer.pre_tokenizer.pattern.Regex: the regular "
                               "expression '") &&
                          Contains("takes too many steps on a text of"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  }
  // What goes through the rest of the text at each place, in machine code or not.
  for (const char* const pattern : {R"(.*[\x00\x01]|.)", R"([^\x00]*[\x00\x01])", R"(.*?\x00|.)"}) {
    INFO(pattern);
    const auto begin = std::chrono::steady_clock::now();
    CHECK_THAT(error_of_text({{"pre_tokenizer", split_by(pattern)}}, repeated(words, 8'000)),
               Contains("too many steps"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  }
  // As a normalizer and as a decoder too.
  const Json backtracks = {
      {"type", "Replace"}, {"pattern", {{"Regex", R"((?:.|..){19}[\x00\x01])"}}}, {"content", "x"}};
  CHECK_THAT(error_of_text({{"normalizer", backtracks}}, text), Contains("too many steps"));
  const Json fused = {{"type", "Sequence"},
                      {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, backtracks}}};
  CHECK_THAT(error_of_text({{"decoder", fused}}, text), Contains("too many steps"));
  // A match that takes long once is no fault.
  CHECK(error_of_text({{"pre_tokenizer", split_by(R"((?:[a-z ])+z|.)")}}, text) == "no error");
  CHECK(error_of_text({{"pre_tokenizer", split_by(R"((?:\p{L}\p{M}*)+|\s|.)")}},
                      repeated("a", 200'000)) == "no error");
}

TEST_CASE("a text that a step makes larger is bounded by its own size") {
  const std::string grows = "grows to more than";
  CHECK_THAT(
      error_of_text({{"normalizer", sequence("normalizers", 9, replace("o", repeated("o", 10)))}},
                    words),
      Contains("tokenizer.normalizer.normalizers[") && Contains(grows));
  CHECK_THAT(error_of_text({{"normalizer", replace("o", repeated("x", 100'000))}}, words),
             Contains("tokenizer.json: tokenizer.normalizer: a text of") && Contains(grows));
  CHECK_THAT(error_of_text(
                 {{"normalizer", {{"type", "Prepend"}, {"prepend", repeated("x", 100'000)}}}}, "a"),
             Contains(grows));
  CHECK_THAT(error_of_text({{"normalizer", sequence("normalizers", 40, {{"type", "ByteLevel"}})}},
                           repeated("\xC3\xA9", 100)),
             Contains(grows));
  CHECK_THAT(
      error_of_text({{"pre_tokenizer", sequence("pretokenizers", 40,
                                                {{"type", "ByteLevel"}, {"use_regex", false}})}},
                    repeated("\xC3\xA9", 100)),
      Contains("tokenizer.pre_tokenizer.pretokenizers[") && Contains(grows));
  Json decoders = {{"type", "Sequence"},
                   {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  for (int i = 0; i < 9; ++i) {
    decoders["decoders"].push_back(replace("o", repeated("o", 10)));
  }
  CHECK_THAT(error_of_text({{"decoder", decoders}}, words),
             Contains("tokenizer.decoder.decoders[") &&
                 Contains("the texts of the tokens grow to more than"));
  // What real files do.
  CHECK(error_of_text({{"normalizer", sequence("normalizers", 3, {{"type", "NFKD"}})}},
                      repeated("\xEF\xB7\xBA", 1000)) == "no error");
  CHECK(error_of_text({{"normalizer", replace(" ", "\xE2\x96\x81")}}, repeated(" ", 100'000)) ==
        "no error");
}

TEST_CASE("steps, tokens that are added, and the length of a token are bounded") {
  CHECK_THAT(error_of_text({{"normalizer", sequence("normalizers", 300, {{"type", "NFC"}})}}, "a"),
             Contains("there are too many steps (expected at most 256)"));
  CHECK_THAT(
      error_of_text(
          {{"pre_tokenizer", sequence("pretokenizers", 300, {{"type", "WhitespaceSplit"}})}}, "a"),
      Contains("there are too many steps"));
  CHECK_THAT(error_of_text({{"decoder", sequence("decoders", 300, {{"type", "Fuse"}})}}, "a"),
             Contains("there are too many steps"));
  const Json added = {{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}};
  const Json twice = {
      {"type", "TemplateProcessing"},
      {"single", std::vector<Json>(200, added)},
      {"pair", Json::array()},
      {"special_tokens", {{"x", {{"id", "x"}, {"ids", {1, 1}}, {"tokens", {"a", "a"}}}}}}};
  CHECK_THAT(error_of_text({{"post_processor", twice}}, "a"),
             Contains("it adds too many tokens (expected at most 256)"));
  const Json longer = {{"id", 60'000}, {"content", repeated("a", 2000)}, {"special", true}};
  CHECK_THAT(error_of_text({{"added_tokens", {longer}}}, "a"),
             Contains("it is too long (expected at most 1024 bytes, got 2000)"));
}
