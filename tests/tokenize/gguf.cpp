// Tokenizers in GGUF files: of files that ggml's package wrote, and of our own.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/gguf.hpp>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.options;
import tessera.tokenize;

#include "compare.hpp"
#include "errors.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tokenize;

namespace {

const std::string gguf_data = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/gguf/";

/// byte_level.json without the added tokens that GGUF cannot express.
std::string expressible(const Scratch& scratch) {
  Json json = read_stored(tokenizer_data + "byte_level.json");
  auto& added = json["added_tokens"];
  for (std::size_t i = added.size(); i-- > 0;) {
    if (!added[i]["special"].get<bool>()) {
      added.erase(i);
    }
  }
  return scratch.write("tokenizer.json", json.dump());
}

/// bpe.model, but white space stays: ggml's programs have no other kind.
std::string with_spaces(const Scratch& scratch) {
  std::ifstream stream(tokenizer_data + "bpe.model", std::ios::binary);
  std::ostringstream bytes;
  // A second normalizer_spec, whose fields replace those of the first.
  bytes << stream.rdbuf() << std::string_view("\x1a\x02\x20\x00", 4);
  return scratch.write("spaces.model", bytes.str());
}

/// The first text whose tokens differ; "" where none does.
std::string difference(const Tokenizer& a, const Tokenizer& b, bool add_special) {
  const EncodeOptions options{.add_special = add_special};
  for (const std::string& text : StoredTexts(tokenizer_data).texts) {
    const Ids ids = a.encode(text, options);
    const Ids others = b.encode(text, options);
    if (ids != others || a.decode(ids) != b.decode(ids)) {
      return text + ": " + shown_ids(ids) + " and " + shown_ids(others);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("the tokens of a GGUF file of byte-level pairs are those of its tokenizer.json") {
  const Scratch scratch;
  const OpenedTokenizer original = open_tokenizer(expressible(scratch));
  const OpenedTokenizer opened = open_tokenizer(gguf_data + "byte_level.gguf");
  CHECK(opened.kind == "gguf");
  CHECK(difference(*original.tokenizer, *opened.tokenizer, false) == "");
  CHECK(opened.special.bos == original.tokenizer->id("<s>"));
  CHECK(opened.special.stop == std::vector{*original.tokenizer->id("</s>")});
  CHECK(opened.chat_template == "{{ messages }}");
  CHECK(opened.tokenizer->encode("a").front() == opened.special.bos);
  CHECK(opened.tokenizer->is_special(*opened.tokenizer->id("<|im_end|>")));
}

TEST_CASE("the tokens of a GGUF file of SentencePiece's pairs are those of its model") {
  const Scratch scratch;
  const OpenedTokenizer original = open_tokenizer(with_spaces(scratch));
  const OpenedTokenizer opened = open_tokenizer(gguf_data + "sentencepiece.gguf");
  CHECK(difference(*original.tokenizer, *opened.tokenizer, true) == "");
  CHECK(opened.special.bos == original.special.bos);
  CHECK(opened.special.unknown == original.special.unknown);
}

TEST_CASE("a tokenizer that goes out as GGUF comes back with its tokens") {
  const Scratch scratch;
  const std::string json = expressible(scratch);
  for (const std::string& file : {json, with_spaces(scratch), gguf_data + "byte_level.gguf"}) {
    INFO(file);
    const OpenedTokenizer original = open_tokenizer(file);
    const std::int64_t vocab = original.tokenizer->vocab_size() + 5;
    const Json fields = Json::parse(gguf_fields(original, vocab));
    if (!fields.contains("tokenizer.chat_template")) {
      CHECK(fields.at("tokenizer.ggml.tokens").at("values").size() ==
            static_cast<std::size_t>(vocab));
    }
    const std::string out = scratch.write("model.gguf", gguf_header(fields, {}));
    const OpenedTokenizer back = open_tokenizer(out);
    CHECK(difference(*original.tokenizer, *back.tokenizer, true) == "");
    CHECK(back.special.stop == original.special.stop);
    CHECK(back.chat_template == original.chat_template);
  }
  const std::string folder = scratch.at("folder");
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(scratch.at("model.gguf"), folder + "/model.gguf");
  CHECK(open_tokenizer(folder).kind == "gguf");
}

TEST_CASE("a tokenizer that GGUF cannot express is refused, and so are wrong fields") {
  const auto out = [](const std::string& file, const std::string& options = "{}") {
    return error_of(
        [&] { gguf_fields(open_tokenizer(tokenizer_data + file, PluginOptions(options)), 0); });
  };
  CHECK(contains(out("bpe.model"), "it removes white space"));
  CHECK(contains(out("byte_level.json"), "the added token"));
  CHECK(contains(out("word_piece.json"), "it has no name there"));
  CHECK(contains(out("unigram.model"), "it is not of pairs"));
  CHECK(contains(out("small.tiktoken", R"({"pattern": "gpt2"})"), "of the kind tiktoken"));

  const Scratch scratch;
  const Json good = read_gguf(gguf_data + "byte_level.gguf").fields;
  const auto problem = [&](const std::string& name, const Json& value) {
    Json fields = good;
    if (value.is_null()) {
      fields.erase("tokenizer.ggml." + name);
    } else {
      fields["tokenizer.ggml." + name] = value;
    }
    return error_of([&] { open_tokenizer(scratch.write("x.gguf", gguf_header(fields, {}))); });
  };
  const auto single = [](const char* type, const Json& value) {
    return Json{{"type", type}, {"value", value}};
  };
  CHECK(contains(problem("model", nullptr), "'tokenizer.ggml.model': is missing"));
  CHECK(contains(problem("model", single("text", "bert")), "is not supported"));
  CHECK(contains(problem("pre", single("text", "falcon")), "expected one of gpt-2"));
  CHECK(contains(problem("add_space_prefix", single("bool", true)), "expected false"));
  CHECK(contains(problem("tokens", single("u32", 3)), "expected a list"));
  CHECK(contains(problem("tokens", {{"type", "text"}, {"values", {"a", "a"}}}),
                 "token_type': is not supported"));
  CHECK(contains(problem("token_type", {{"type", "i32"}, {"values", {1, 9}}}), "a type for each"));
  CHECK(contains(problem("bos_token_id", single("u32", 1U << 30U)), "expected a token"));
  CHECK(contains(problem("merges", {{"type", "text"}, {"values", {"zzz qqq"}}}), "merges"));
}
