// Chat templates against transformers (tests/reference/chat_templates.py).
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "skip.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;
using data::ChatTemplate;

namespace {

Order parsed_file(const std::string& file) { return Order::parse(read_file(file)); }

/// Both agree: on the text, or that there is none.
template <class Render>
void compare(const Order& expected, Render render) {
  if (expected.contains("error")) {
    CHECK(error_of(render) != "no error");
    return;
  }
  std::string text;
  CHECK(error_of([&] { text = render(); }) == "no error");
  CHECK(text == expected["text"].get<std::string>());
}

void compare_conversations(const Order& stored, const std::string& folder) {
  for (const Order& one : stored["conversations"]) {
    const std::string file = one["template"];
    INFO(file << ", " << one["name"].get<std::string>() << ", prompt " << one["prompt"]);
    const ChatTemplate chat(read_file(folder + file), file, stored["variables"].dump());
    compare(one, [&] { return chat.render(one["conversation"].dump(), one["prompt"]); });
    if (one.contains("error") || one["prompt"] || !chat.marks_answers()) {
      continue;
    }
    std::vector<std::string> parts;
    const data::RenderedChat rendered = chat.render_with_answers(one["conversation"].dump());
    for (const data::AnswerPlace& answer : rendered.answers) {
      parts.push_back(rendered.text.substr(static_cast<std::size_t>(answer.begin),
                                           static_cast<std::size_t>(*answer.end - answer.begin)));
    }
    CHECK(parts == one["generated"].get<std::vector<std::string>>());
  }
}

std::string refusal(const std::string& text) {
  return error_of([&] { ChatTemplate(text, "t.jinja"); });
}

}  // namespace

TEST_CASE("expressions and tags have the texts that Jinja2 gives them") {
  const Order stored = parsed_file(chat_data + "expected.json");
  REQUIRE(stored["pieces"].size() > 180);
  for (const Order& one : stored["pieces"]) {
    const std::string piece = one["piece"];
    INFO(piece);
    compare(one, [&] {
      return ChatTemplate(piece, "piece", stored["values"].dump())
          .render(R"({"messages": []})", false);
    });
  }
}

TEST_CASE("a piece that Jinja2 renders otherwise is refused, never rendered differently") {
  const Order stored = parsed_file(chat_data + "more.json");
  REQUIRE(stored["pieces"].size() > 560);
  std::size_t refused = 0;
  for (const Order& one : stored["pieces"]) {
    const std::string piece = one["piece"];
    INFO(piece);
    std::string text;
    const std::string error = error_of([&] {
      text = ChatTemplate(piece, "piece", stored["values"].get<std::string>())
                 .render(R"({"messages": []})", false);
    });
    if (error != "no error") {
      CHECK_THAT(error, Catch::StartsWith("piece: line "));
      refused += one.contains("error") ? 0 : 1;
    } else {
      REQUIRE(one.contains("text"));
      CHECK(text == one["text"].get<std::string>());
    }
  }
  CHECK(refused <= 80);
}

TEST_CASE("whole numbers of any size are written as they are") {
  const ChatTemplate chat("{{ messages[0].n }} {{ messages[0] | tojson }}", "t");
  CHECK(chat.render(R"({"messages": [{"n": -123456789012345678901234567890,
                        "m": 18446744073709551615, "g": 1.50}]})",
                    false) ==
        "-123456789012345678901234567890 {\"n\": -123456789012345678901234567890, \"m\": "
        "18446744073709551615, \"g\": 1.5}");
  CHECK_THAT(error_of([&] { chat.render(R"({"messages": [{"n": 1e999}]})", false); }),
             Contains("a number in it is out of range"));
}

TEST_CASE("a text of JSON is read by a filter, as templates of llama.cpp do") {
  const ChatTemplate chat("{{ (messages[0].n | from_json).a[1] | tojson }}", "t");
  const auto read = [&](const std::string& text) {
    return chat.render(R"({"messages": [{"n": )" + text + "}]}", false);
  };
  CHECK(read(R"("{\"a\": [1, {\"b\": null}]}")") == "{\"b\": null}");
  for (const char* const wrong : {R"("{")", R"("")", R"("1, \"value\": 2")", R"("1, \"b\": 2")"}) {
    CHECK_THAT(error_of([&] { read(wrong); }), Contains("from_json"));
  }
}

TEST_CASE("whole numbers of any size are compared with fractions exactly, as Python does") {
  const ChatTemplate chat(
      "{% set n = messages[0].n %}{{ [n == 1e30, n > 1e30, n > 0.5, -1e30 < n, n == "
      "1267650600228229401496703205376.0, n < 2.0 ** 101, n < 1e308 * 10] }}",
      "t");
  CHECK(chat.render(R"({"messages": [{"n": 1267650600228229401496703205376}]})", false) ==
        "[False, True, True, True, True, True, True]");
}

TEST_CASE("the date of the day is one that the run names") {
  const std::string text = "{{ strftime_now('%d %B %Y, %A %-d %H:%M') }}";
  const auto rendered = [&](const std::string& variables) {
    return ChatTemplate(text, "t", variables).render(R"({"messages": []})", false);
  };
  CHECK(rendered(R"({"now": "2024-02-29"})") == "29 February 2024, Thursday 29 00:00");
  CHECK(rendered(R"({"now": "2026-11-05T17:04:09"})") == "05 November 2026, Thursday 5 17:04");
  CHECK_THAT(error_of([&] { rendered("{}"); }), Contains("template_options = { now = "));
  CHECK_THAT(error_of([&] { rendered(R"({"now": "2026-02-29"})"); }), Contains("is no date"));
  CHECK_THAT(error_of([&] { rendered(R"({"now": "today"})"); }), Contains("is no date"));
  CHECK_THAT(error_of([&] {
               ChatTemplate("{{ strftime_now('%Q') }}", "t", R"({"now": "2024-02-29"})")
                   .render(R"({"messages": []})", false);
             }),
             Contains("a directive of strftime_now"));
}

TEST_CASE("an answer may have several marked parts, each of its own message") {
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
      {"role": "assistant", "content": "d"}]})";
  const auto answers = [&](const std::string& text) {
    std::string found;
    const data::RenderedChat rendered = ChatTemplate(text, "marks").render_with_answers(chat);
    for (const data::AnswerPlace& answer : rendered.answers) {
      const auto begin = static_cast<std::size_t>(answer.begin);
      found += rendered.text.substr(begin, static_cast<std::size_t>(*answer.end) - begin) +
               std::to_string(answer.message);
    }
    return found;
  };
  const std::string mark = "{% generation %}{{ m.content }}{% endgeneration %}";
  CHECK(answers("{% for m in messages %}{% if m.role == 'assistant' %}" + mark + "-" + mark +
                "{% endif %}{% endfor %}{% generation %}!{% endgeneration %}") == "b1b1d3d3!3");
  // Without a loop over messages: by their order.
  CHECK(answers("{% generation %}x{% endgeneration %}{% generation %}y{% endgeneration %}") ==
        "x1y3");
  CHECK_THAT(error_of([&] { answers("{% for m in messages %}" + mark + "{% endfor %}"); }),
             Contains("is not of an answer"));
  CHECK_THAT(error_of([&] {
               answers("{% for m in messages[:2] %}{% if m.role == 'assistant' %}" + mark +
                       "{% endif %}{% endfor %}");
             }),
             Contains("does not mark the answer of message 4"));
}

TEST_CASE("conversations have the texts that transformers gives them") {
  compare_conversations(parsed_file(chat_data + "expected.json"), chat_data);
}

TEST_CASE("conversations of real templates have the texts that transformers gives them",
          "[.long]") {
  const char* const folder = std::getenv("TESSERA_CHAT_TEMPLATES");
  if (folder == nullptr) {
    skip("TESSERA_CHAT_TEMPLATES names no folder");
    return;
  }
  compare_conversations(parsed_file(std::string(folder) + "/expected.json"),
                        std::string(folder) + "/");
}

TEST_CASE("a construct that is not supported is named with its line") {
  CHECK_THAT(refusal("a\n{% include 'x' %}"), Contains("t.jinja: line 2: the tag {% include %}"));
  CHECK_THAT(refusal("\n\n{{ x | pprint }}"), Contains("line 3: the filter 'pprint'"));
  CHECK_THAT(refusal("{% for i in l %}{% macro f() %}{% endmacro %}{% endfor %}"),
             Contains("{% macro %} within"));
  CHECK_THAT(refusal("{{ x is escaped }}"), Contains("line 1: the test 'is escaped'"));
  CHECK_THAT(refusal("{{ x.format(1) }}"), Contains("line 1: the method .format()"));
  CHECK_THAT(refusal("{% for i in l recursive %}{% endfor %}"), Contains("'recursive'"));
  CHECK_THAT(refusal("{% raw %}{% endraw %}"), Contains("{% raw %}"));
  CHECK_THAT(refusal("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}"),
             Contains("{% generation %} within"));
}

TEST_CASE("a template that is none is refused with its line") {
  CHECK_THAT(refusal("{{ 1"), Contains("t.jinja: line 1: a tag {{ does not end"));
  CHECK_THAT(refusal("a\n{% if x %}b"), Contains("line 2: a tag does not end (expected {% endif"));
  CHECK_THAT(refusal("{% endif %}"), Contains("the tag {% endif %} has no beginning"));
  CHECK_THAT(refusal("{# a"), Contains("a comment"));
  CHECK_THAT(refusal("{{ 1 + }}"), Contains("expected a value"));
  CHECK_THAT(refusal("{{ 'a }}"), Contains("does not end"));
  CHECK_THAT(refusal("{{ a ! b }}"), Contains("the character '!'"));
  CHECK_THAT(refusal("{% break %}"), Contains("must be within {% for %}"));
  CHECK_THAT(refusal("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
             Contains("nested too deeply"));
  std::string nested;
  for (int i = 0; i < 500; ++i) {
    nested += "{% if x %}";
  }
  CHECK_THAT(refusal(nested), Contains("nested too deeply"));
}

TEST_CASE("answers are found by comparing with beginnings, or refused") {
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
  const data::RenderedChat rendered = chat_template("chatml.jinja")->render_with_answers(chat);
  REQUIRE(rendered.answers.size() == 2);
  CHECK(rendered.text.substr(static_cast<std::size_t>(rendered.answers[1].begin)) ==
        "d<|im_end|>\n");
  CHECK(rendered.answers[1].message == 3);
  // Strips what is before an answer when there is one: in a chat, the model would read other text.
  const ChatTemplate strips(
      "{% for m in messages %}{{ m.content if not loop.last else m.content | trim }}|{% endfor %}",
      "strips.jinja");
  CHECK_THAT(error_of([&] {
               strips.render_with_answers(
                   R"({"messages": [{"role": "user", "content": " a "},
                       {"role": "assistant", "content": "b"}]})");
             }),
             Contains("strips.jinja: the template writes what comes before message 2 in another "
                      "way"));
}
