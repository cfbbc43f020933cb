#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "tessera/shown.hpp"
#include "tessera/utf8.hpp"

import tessera.base;

using namespace tessera;

TEST_CASE("patterns match qualified names") {
  CHECK(
      matches_pattern("model.layers.3.self_attn.q_proj", "model.layers.*.self_attn.{q,k,v}_proj"));
  CHECK_FALSE(
      matches_pattern("model.layers.3.self_attn.o_proj", "model.layers.*.self_attn.{q,k,v}_proj"));
  CHECK_FALSE(matches_pattern("model.layers.3.mlp", "model.*"));
  CHECK(matches_pattern("model.layers.3.mlp", "model.**"));
  CHECK(matches_pattern("", "."));
  CHECK_FALSE(matches_pattern("model", "."));
  CHECK_THROWS_AS(matches_pattern("a", "{a"), Error);
}

TEST_CASE("an error has its parts as fields, and its text is made of them") {
  const auto text_of = [](const ErrorFields& fields) { return std::string(Error(fields).what()); };
  CHECK(
      text_of({.thing = "topk", .wrong = "k is out of range", .expected = "0 to 4", .got = "5"}) ==
      "topk: k is out of range (expected 0 to 4, got 5)");
  CHECK(text_of({.thing = "run.toml", .wrong = "it cannot be read", .advice = "check its name"}) ==
        "run.toml: it cannot be read; check its name");
  CHECK(text_of({.wrong = "no", .expected = "yes"}) == "no (expected yes)");
  CHECK(text_of({.wrong = "no", .got = "no"}) == "no (got no)");
  CHECK(text_of({.where = "a.toml:3",
                 .thing = "add",
                 .wrong = "no",
                 .details = "  a line",
                 .module = "",
                 .backward = true,
                 .rank = 2}) == "a.toml:3: the model, backward: add: no\n  a line");
  CHECK(text_of({.wrong = "no", .module = "model.norm"}) == "module 'model.norm': no");
  CHECK(text_of({.thing = "module 'model.norm'", .wrong = "no", .module = "model.norm"}) ==
        "module 'model.norm': no");
  CHECK(text_of({.thing = "module 'model'", .wrong = "no", .module = "model.norm"}) ==
        "module 'model.norm': module 'model': no");

  const Error plain("thing: text");
  CHECK(plain.fields().wrong == "thing: text");
  CHECK(plain.fields().rank == -1);
  const Error copy = plain;  // NOLINT(performance-unnecessary-copy-initialization)
  CHECK(&copy.fields() == &plain.fields());

  const auto placed = [](const Error& error) {
    try {
      fail_at("a.toml:3", error);
    } catch (const Error& thrown) {
      CHECK(thrown.kind() == ErrorKind::input);
      return thrown.fields().where;
    }
  };
  CHECK(placed(plain) == "a.toml:3");
  CHECK(placed(Error(ErrorFields{.where = "b.toml:1", .wrong = "no"})) == "b.toml:1");
}

TEST_CASE("a misspelt name finds its neighbour") {
  const std::vector<std::string> known = {"steps", "batch", "micro_batch", "seed"};
  CHECK(nearest_name("step", known) == "steps");
  CHECK(nearest_name("microbatch", known) == "micro_batch");
  CHECK(nearest_name("zzzzzz", known).empty());
}

TEST_CASE("types promote as in PyTorch") {
  CHECK(promote(DType::bf16, DType::f16) == DType::f32);
  CHECK(promote(DType::i64, DType::bf16) == DType::bf16);
  CHECK(promote(DType::f32, DType::f64) == DType::f64);
  CHECK(promote(DType::boolean, DType::i32) == DType::i32);
}

TEST_CASE("an inline vector grows past its inline entries and keeps its values") {
  InlineVector<std::string, 2> v;
  for (int i = 0; i < 9; ++i) {
    v.push_back(std::string(30, static_cast<char>('a' + i)));
  }
  InlineVector<std::string, 2> copy = v;
  InlineVector<std::string, 2> moved = std::move(v);
  CHECK(copy == moved);
  CHECK(moved.size() == 9);
  CHECK(moved[8] == std::string(30, 'i'));
}

TEST_CASE("FLOPs have a decimal unit and three digits") {
  CHECK(format_flops(0) == "0 FLOP");
  CHECK(format_flops(65536) == "65.5 kFLOP");
  CHECK(format_flops(999.4) == "999 FLOP");
  CHECK(format_flops(999.6) == "1.00 kFLOP");
  CHECK(format_flops(4.2e12) == "4.20 TFLOP");
  CHECK(format_flops(3e21) == "3000 EFLOP");
}

TEST_CASE("counts and numbers are written as words") {
  CHECK(count_text(0, "rank") == "0 ranks");
  CHECK(count_text(1, "rank") == "1 rank");
  CHECK(count_text(2, "rank") == "2 ranks");
  CHECK(numbers_text("rank", std::vector{3}) == "rank 3");
  CHECK(numbers_text("rank", std::vector{0, 1, 3}) == "ranks 0, 1 and 3");
  CHECK(list_numbers(std::vector{0, 1, 3}) == "0, 1, 3");
  std::vector<int> many(300);
  std::iota(many.begin(), many.begin() + 256, 0);
  std::iota(many.begin() + 256, many.end(), 1000);
  CHECK(list_numbers(many) == "0 to 255, 1000 to 1043");
  CHECK(numbers_text("machine", many) == "machines 0 to 255 and 1000 to 1043");
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<int>(2 * i);
  }
  CHECK(list_numbers(many) ==
        "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 284 more");
  CHECK(numbers_text("rank", many) ==
        "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 284 more");
}

TEST_CASE("dims refuse more than eight entries") {
  Dims d = Dims::filled(8, 1);
  CHECK_THROWS_AS(d.push_back(1), Error);
  CHECK(to_string(Dims{2, 3}) == "[2, 3]");
  CHECK(contiguous_strides(Dims{2, 3, 4}) == Dims{12, 4, 1});
}

TEST_CASE("what a terminal would act on is shown and not done") {
  CHECK(terminal_text("a\tb\nc \u00e4\u4f60\U0001f600") == "a\tb\nc \u00e4\u4f60\U0001f600");
  CHECK(terminal_text("\x1b[31m\r\x07\x7f") == "\\x1b[31m\\x0d\\x07\\x7f");
  CHECK(terminal_text(std::string_view("\0", 1)) == "\\x00");
  CHECK(terminal_text("\u009b2J \u202e \u2066") == "\\u009b2J \\u202e \\u2066");
  CHECK(tessera::terminal_line("a\tb\n\x1b \u009b1 \u00e4") == "a\\x09b\\x0a\\x1b \\u009b1 \u00e4");
  CHECK(tessera::terminal_line(std::string(300, 'a')) == tessera::shown(std::string(300, 'a')));
  // Bytes that are not UTF-8: alone, cut, too long a form, a surrogate, beyond the last character.
  CHECK(terminal_text("\xff\xc3") == "\\xff\\xc3");
  CHECK(terminal_text("\xe4\xbd z") == "\\xe4\\xbd z");
  CHECK(terminal_text("\xc0\x80\xe0\x80\x80") == "\\xc0\\x80\\xe0\\x80\\x80");
  CHECK(terminal_text("\xed\xa0\x80\xf4\x90\x80\x80") == "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  const Error error(ErrorFields{.thing = "a\x1b[2J", .wrong = "b\x80", .details = "c\r"});
  CHECK(std::string(error.what()) == "a\\x1b[2J: b\\x80\nc\\x0d");
  CHECK(error.fields().thing == "a\x1b[2J");
}

TEST_CASE("characters of UTF-8 are those of the standard, and no others") {
  const auto bytes_of = [](char32_t code) {
    std::string text;
    append_utf8(text, code);
    return text;
  };
  CHECK(bytes_of('a') == "a");
  CHECK(bytes_of(0xE9) == "\xC3\xA9");
  CHECK(bytes_of(0x65E5) == "\xE6\x97\xA5");
  CHECK(bytes_of(0x1F600) == "\xF0\x9F\x98\x80");
  std::int64_t wrong = 0;
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    const bool half = code >= 0xD800 && code < 0xE000;
    const std::string text = bytes_of(code);
    const Character read = first_character(text + "x");
    const bool same = read.code == code && read.bytes == text.size();
    wrong += (half ? read.bytes != 0 : !same) ? 1 : 0;
  }
  CHECK(wrong == 0);
  // Longer than they have to be, above the last character, a continuation alone, cut off.
  for (const char* const text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF8\x88\x80\x80", "\x80", "\xFF", "\xC3", "\xE6\x97", "\xF0\x9F\x98"}) {
    CHECK(first_character(text).bytes == 0);
  }
}
