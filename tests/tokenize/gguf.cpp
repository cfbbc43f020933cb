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
#include "errors.hpp"

import tessera.base;
import tessera.options;
import tessera.tokenize;

#include "compare.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::tokenize;

namespace {

const std::string gguf_data = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/gguf/";

/// byte_level.json without the added tokens that GGUF cannot express.
std::string expressible(const Folder& scratch) {
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
std::string with_spaces(const Folder& scratch) {
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
  const Folder scratch;
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
  const Folder scratch;
  const OpenedTokenizer original = open_tokenizer(with_spaces(scratch));
  const OpenedTokenizer opened = open_tokenizer(gguf_data + "sentencepiece.gguf");
  CHECK(difference(*original.tokenizer, *opened.tokenizer, true) == "");
  CHECK(opened.special.bos == original.special.bos);
  CHECK(opened.special.unknown == original.special.unknown);
}

TEST_CASE("a tokenizer that goes out as GGUF comes back with its tokens") {
  const Folder scratch;
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
  const std::string folder = scratch / "folder";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(scratch / "model.gguf", folder + "/model.gguf");
  CHECK(open_tokenizer(folder).kind == "gguf");
}

TEST_CASE("a tokenizer.json of SentencePiece's pairs goes out as GGUF and comes back as one") {
  // tests/reference/piece_tokenizers.py
  const Json stored = read_stored(tokenizer_data + "pieces.json");
  for (const char* const name : {"prefixed", "plain"}) {
    INFO(name);
    const StoredTexts shared(tokenizer_data);
    std::vector<std::string> texts(
        shared.texts.begin(), shared.texts.begin() + static_cast<std::ptrdiff_t>(shared.valid));
    for (const Json& text : stored.at(name).at("texts")) {  // with spaces and ends of lines
      texts.push_back(text);
    }
    const Folder scratch;
    const Json& ids = stored.at(name).at("ids");
    scratch.write("tokenizer.json", stored.at(name).at("tokenizer").dump());
    scratch.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    scratch.write("chat_template.jinja", "{{ messages }}");
    const OpenedTokenizer original = open_tokenizer(scratch.path().string());
    // The library that decodes a GGUF file's pieces lets each part between special tokens begin
    // without a space.
    const auto wrong = [&](const OpenedTokenizer& opened) {
      std::string first;
      for (std::size_t i = 0; i < texts.size() && first.empty(); ++i) {
        const Ids expected = parse_ids(ids[i]);
        const Ids got = opened.tokenizer->encode(texts[i], {.add_special = false});
        first = got == expected && (opened.kind == "gguf" || opened.tokenizer->decode(got) ==
                                                                 original.tokenizer->decode(got))
                    ? ""
                    : texts[i] + ": " + shown_ids(got) + " instead of " + shown_ids(expected);
      }
      return first;
    };
    CHECK(wrong(original) == "");
    const std::string fields = gguf_fields(original, original.tokenizer->vocab_size() + 5);
    const OpenedTokenizer written =
        open_tokenizer(scratch.write("out.gguf", gguf_header(Json::parse(fields), {})));
    CHECK(written.kind == "gguf");
    CHECK(wrong(written) == "");
    const Folder folder;
    for (const auto& [file, text] : hub_files(written)) {
      folder.write(file, text);
    }
    const OpenedTokenizer back = open_tokenizer(folder.path());
    CHECK(back.kind == "tokenizer.json");
    CHECK(wrong(back) == "");
    CHECK(back.special.bos == original.special.bos);
    CHECK(back.special.stop == original.special.stop);
    CHECK(back.chat_template == "{{ messages }}");
    CHECK(back.tokenizer->encode("a") == original.tokenizer->encode("a"));
  }
}

TEST_CASE("merges that scores cannot express are refused, and so are pieces without merges") {
  const Json stored = read_stored(tokenizer_data + "pieces.json").at("plain").at("tokenizer");
  const auto out = [&](const std::string& pointer, const Json& value) {
    const Folder scratch;
    Json changed = stored;
    changed[Json::json_pointer(pointer)] = value;
    const std::string file = scratch.write("tokenizer.json", changed.dump());
    return error_of([&] { gguf_fields(open_tokenizer(file), 0); });
  };
  CHECK(out("/model/dropout", nullptr) == "no error");
  Json merges = stored.at("model").at("merges");
  std::swap(merges[9], merges[merges.size() - 1]);
  merges.erase(merges.size() - 1);
  CHECK(contains(out("/model/merges", merges), "GGUF cannot express this tokenizer"));
  merges = stored.at("model").at("merges");
  merges.erase(merges.size() - 1);
  CHECK(contains(out("/model/merges", merges), "GGUF cannot express this tokenizer"));
  CHECK(contains(out("/normalizer", {{"type", "NFC"}}), "for its normalizer and decoder"));
  CHECK(contains(out("/pre_tokenizer", {{"type", "Digits"}}), "for its pre_tokenizer"));
  Json added = stored.at("added_tokens");
  added[1]["lstrip"] = true;
  CHECK(contains(out("/added_tokens", added), "the added token '<s>' takes white space"));
}

TEST_CASE("the ids of a GGUF file's tokens are those of its tokenizer.json in a folder") {
  // The library counts ids: tokens that are not the last ones are in the vocabulary then.
  const Json fields = read_gguf(gguf_data + "byte_level.gguf").fields;
  Json swapped = fields;
  auto& tokens = swapped["tokenizer.ggml.tokens"]["values"];
  auto& types = swapped["tokenizer.ggml.token_type"]["values"];
  const std::size_t last = tokens.size() - 1;
  std::swap(tokens[300], tokens[last]);
  std::swap(types[300], types[last]);
  for (const Json& one : {fields, swapped}) {
    const Folder folder;
    const OpenedTokenizer original = open_tokenizer(folder.write("in.gguf", gguf_header(one, {})));
    for (const auto& [file, text] : hub_files(original)) {
      folder.write(file, text);
    }
    const OpenedTokenizer back = open_tokenizer(folder / "tokenizer.json");
    CHECK(difference(*original.tokenizer, *back.tokenizer, true) == "");
    CHECK(back.special.eos == original.special.eos);
    CHECK(back.chat_template == original.chat_template);
  }
}

TEST_CASE("bytes go out as a tokenizer.json with the byte as its id") {
  OpenedTokenizer bytes;
  bytes.tokenizer = make_tokenizer("bytes");
  bytes.kind = "bytes";
  const Folder folder;
  for (const auto& [file, text] : hub_files(bytes)) {
    folder.write(file, text);
  }
  // Hugging Face's library refuses a part that lacks a field.
  const Json json = Json::parse(hub_files(bytes).at("tokenizer.json"));
  for (const char* const part : {"pre_tokenizer", "decoder"}) {
    CHECK(json.at(part) == Json{{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", true}});
  }
  const Json fields = Json::parse(gguf_fields(bytes, 256));
  const std::string out = folder.write("model.gguf", gguf_header(fields, {}));
  const StoredTexts texts(tokenizer_data);
  for (const std::string& file : {folder.path().string(), out}) {
    const auto tokenizer = open_tokenizer(file).tokenizer;
    for (std::size_t i = 0; i < texts.valid; ++i) {
      CHECK(tokenizer->encode(texts.texts[i]) == bytes.tokenizer->encode(texts.texts[i]));
      CHECK(tokenizer->decode(bytes.tokenizer->encode(texts.texts[i])) == texts.texts[i]);
    }
  }
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

  const Folder scratch;
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
