// Chat templates against transformers (tests/reference/chat_templates.py).
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "skip.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

#include "errors.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;
using data::ChatTemplate;

namespace {

Order parsed_file(const std::string& file) { return Order::parse(read_text(file)); }

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
    const ChatTemplate chat(read_text(folder + file), file, stored["variables"].dump());
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

TEST_CASE("a template that does not end, or writes without end, is an error") {
  const auto run = [](const std::string& text) {
    return error_of([&] { ChatTemplate(text, "t").render(R"({"messages": []})", false); });
  };
  CHECK_THAT(run("{% for i in range(5000) %}{% for j in range(5000) %}{% endfor %}{% endfor %}"),
             Contains("do not end"));
  CHECK_THAT(run("{{ 'abcdefgh' * 100000000 }}"), Contains("too long"));
  CHECK_THAT(run("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), Contains("too deeply"));
  CHECK_THAT(run("{{ 9223372036854775807 + 1 }}"), Contains("too large"));
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
