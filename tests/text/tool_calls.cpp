// Calls of tools, as templates of real models write them (transformers' texts), read in parts.
#include <cstddef>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.grammar;
import tessera.text;

using namespace tessera::text;
using nlohmann::json;

namespace {

struct Read {
  std::string text;
  std::vector<ToolCall> calls;
};

/// In parts of so many bytes. `weather` has a text `place`.
Read read(const ToolCallForm& form, std::string_view text, std::size_t length) {
  const Tool tool{.name = "weather",
                  .parameters = R"({"properties": {"place": {"type": "string"}}})"};
  ToolCallReader reader(form, std::span(&tool, 1));
  Read all;
  const auto add = [&](const ToolCallReader::Part& part) {
    all.text += part.text;
    all.calls.insert(all.calls.end(), part.calls.begin(), part.calls.end());
  };
  for (std::size_t i = 0; i < text.size(); i += length) {
    add(reader.add(text.substr(i, length)));
  }
  add(reader.finish());
  return all;
}

bool are(const std::vector<ToolCall>& calls, const json& expected) {
  if (calls.size() != expected.size()) {
    return false;
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].name != expected[i]["name"].get<std::string>() ||
        json::parse(calls[i].arguments, nullptr, false) != expected[i]["arguments"]) {
      return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("calls are read from the texts of the templates of real models") {
  std::ifstream file(TESSERA_SOURCE_FOLDER "/tests/reference/data/chat/tool_calls.json");
  const json all = json::parse(file);
  std::set<std::string> known;
  std::set<std::string> unknown;
  for (const json& entry : all) {
    const auto name = entry["template"].get<std::string>();
    const auto text = entry["text"].get<std::string>();
    CAPTURE(name, text);
    bool found = false;
    for (const ToolCallForm& form : tool_call_forms()) {
      // Of a whole answer, without its header and the token for its end.
      const std::string own =
          form.begin.empty() ? text.substr(text.find('{'), text.rfind('}') + 1 - text.find('{'))
                             : text;
      const Read whole = read(form, own, own.size());
      if (!are(whole.calls, entry["calls"])) {
        continue;
      }
      found = true;
      for (const std::size_t length : {1, 2, 3, 7, 20}) {
        const Read parts = read(form, own, length);
        CHECK(are(parts.calls, entry["calls"]));
        CHECK(parts.text == whole.text);
      }
      break;
    }
    (found ? known : unknown).insert(name);
  }
  // Forms of one family each, or with marks of another kind.
  CHECK(unknown ==
        std::set<std::string>{"GigaChat3-10B-A1.8B", "Kimi-K3", "deepseek-ai-DeepSeek-V3.2",
                              "deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731",
                              "google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved",
                              "meetkai-functionary-medium-v3.2", "muse-glimmer",
                              "openai-gpt-oss-120b", "tencent-Hy3", "upstage-Solar-Open-100B"});
  CHECK(known.size() == 41);
}

TEST_CASE("what is no call is shown") {
  const ToolCallForm& form = tool_call_forms()[0];
  const auto shown = [&](const std::string& text) {
    for (const std::size_t length : {1, 3, 100}) {
      const Read all = read(form, text, length);
      CHECK(all.calls.empty());
      CHECK(all.text == text);
    }
  };
  shown("a text, <tool and <tool_cal");
  shown("ends with blanks \n\n");
  shown("<tool_call>\nno JSON\n</tool_call> after");
  shown("<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>");
  shown("<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>");
  shown("<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": [1, 2");
  shown("<tool_call>" + std::string(100'000, '['));
  const Read both = read(
      form, "Let me see.\n\n<tool_call>{\"name\": \"a\", \"arguments\": \"{}\"}</tool_call>\nDone",
      1);
  CHECK(both.text == "Let me see.\nDone");
  CHECK(both.calls.size() == 1);
  CHECK(both.calls[0].arguments == "{}");
  // The answer ended before the last mark, or within it.
  CHECK(read(form, "<tool_call>{\"name\": \"a\", \"arguments\": {}}\n</tool", 1).calls.size() == 1);
  CHECK(read(form, "<tool_call>{\"name\": \"a\", \"arguments\": {}}", 1).calls.size() == 1);
  const ToolCallForm& whole = tool_call_forms().back();
  CHECK(read(whole, "<|python_tag|>{\"name\": \"a\", \"parameters\": {}}", 2).calls.size() == 1);
  CHECK(read(whole, "{\"name\": \"a\", \"parameters\": {}} and more", 2).text ==
        "{\"name\": \"a\", \"parameters\": {}} and more");
  CHECK(read(whole, "Not {\"name\": \"a\", \"parameters\": {}}", 1).calls.empty());
}

namespace {

/// The form whose sections begin so, with a mark for each argument.
ToolCallForm tagged(const std::string& begin, const std::string& key) {
  for (const ToolCallForm& form : tool_call_forms()) {
    const auto* const calls = std::get_if<TaggedCalls>(&form.calls);
    if (calls != nullptr && form.begin == begin && calls->key == key) {
      return form;
    }
  }
  FAIL("there is no such form");
  return {};
}

ToolCallForm qwen() { return tagged("<tool_call>", "<parameter="); }
ToolCallForm glm() { return tagged("<tool_call>", "<arg_key>"); }

const char* const parameters = R"({"type": "object", "required": ["place"], "properties": {
  "place": {"type": "string"}, "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
  "unit": {"type": "string", "enum": ["C", "F"]}}, "$defs": {"day": {"type": "integer"}}})";

/// The arguments of the one call of the text, with that tool.
json arguments_of(const ToolCallForm& form, const std::string& text) {
  const Tool tool{.name = "weather", .parameters = parameters};
  ToolCallReader reader(form, std::span(&tool, 1));
  auto part = reader.add(text);
  if (part.calls.empty()) {
    part = reader.finish();
  }
  return part.calls.size() == 1 ? json::parse(part.calls[0].arguments) : json();
}

bool follows(const ToolCallForm& form, const std::string& text, bool several = false) {
  using namespace tessera::grammar;  // NOLINT(google-build-using-namespace)
  const std::vector<Tool> tools = {{.name = "weather", .parameters = parameters},
                                   {.name = "time", .parameters = ""}};
  const auto tokens = std::make_shared<const TokenTree>(std::vector<std::string>{"a"});
  return Constraint(tool_call_grammar(form, tools, several, "tools"), tokens, "tools")
      .accepts(text);
}

}  // namespace

TEST_CASE("arguments in tags are texts or JSON by the schema of the tool") {
  const auto qwens = [](const std::string& name, const std::string& value) {
    return arguments_of(qwen(), "<tool_call>\n<function=weather>\n<parameter=" + name + ">" +
                                    value + "</parameter>\n</function>\n</tool_call>");
  };
  CHECK(qwens("place", "\n3\n") == json({{"place", "3"}}));
  CHECK(qwens("place", "3") == json({{"place", "3"}}));
  CHECK(qwens("place", "\n\n a\nb \n\n") == json({{"place", "\n a\nb \n"}}));
  CHECK(qwens("place", "<b>\"{</b>") == json({{"place", "<b>\"{</b>"}}));
  CHECK(qwens("days", "\n[1, 2]\n") == json({{"days", {1, 2}}}));
  CHECK(qwens("days", "not JSON") == json({{"days", "not JSON"}}));
  CHECK(qwens("other", "3") == json({{"other", 3}}));
  CHECK(arguments_of(glm(),
                     "<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>1 < 2</arg_value>\n"
                     "<arg_key>days</arg_key><arg_value>[]</arg_value></tool_call>") ==
        json({{"place", "1 < 2"}, {"days", json::array()}}));
  CHECK(arguments_of(glm(), "<tool_call>weather</tool_call>") == json::object());
  // No calls: without an end, a name, or the mark of a value.
  for (const char* const text :
       {"<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>1 < 2",
        "<tool_call>\n</tool_call>", "<tool_call>weather\n<arg_key>place</arg_key>Rome</tool_call>",
        "<tool_call>two words <here></tool_call>"}) {
    CAPTURE(text);
    CHECK(arguments_of(glm(), text).is_null());
    CHECK(read(glm(), text, 1).text == text);
  }
}

TEST_CASE("grammars of calls in tags have what the schemas allow") {
  const auto qwens = [](const std::string& inner) {
    return follows(qwen(),
                   "<tool_call>\n<function=weather>\n" + inner + "</function>\n</tool_call>");
  };
  const auto argument = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">" + value + "</parameter>\n";
  };
  CHECK(qwens(argument("place", "\nRome <b> </param </</parameter\n")));
  CHECK(qwens(argument("place", "a") + argument("days", "\n[1, 2]\n") + argument("unit", "\nC\n")));
  CHECK(qwens(argument("place", "a <")));
  CHECK(qwens(argument("place", "") + argument("unit", "F")));
  CHECK(!qwens(argument("days", "[1]")));  // place is required
  CHECK(!qwens(argument("place", "a") + argument("days", "[\"x\"]")));
  CHECK(!qwens(argument("place", "a") + argument("unit", "K")));
  CHECK(!qwens(argument("place", "a") + argument("other", "b")));
  CHECK(!qwens(argument("place", "a</parameter>b")));
  CHECK(follows(qwen(), "<tool_call>\n<function=time>\n</function>\n</tool_call>"));
  CHECK(follows(qwen(),
                "<tool_call><function=time><parameter=any>x</parameter></function></tool_call>"));
  CHECK(!follows(qwen(), "<tool_call><function=clock></function></tool_call>"));
  const std::string two = "<tool_call>time</tool_call>\n<tool_call>time</tool_call>";
  CHECK(follows(glm(), two, true));
  CHECK(!follows(glm(), two, false));
  const ToolCallForm minimax = tagged("<minimax:tool_call>", "<parameter name=\"");
  const std::string calls =
      "<minimax:tool_call>\n<invoke name=\"time\">\n</invoke>\n<invoke name=\"weather\">\n"
      "<parameter name=\"place\">a</parameter>\n</invoke>\n</minimax:tool_call>";
  CHECK(follows(minimax, calls, true));
  CHECK(!follows(minimax, calls, false));
  const Tool pattern{.name = "a",
                     .parameters = R"({"properties": {"b": {"type": "string", "pattern": "c"}}})"};
  CHECK_THROWS_WITH(
      tool_call_grammar(qwen(), std::span(&pattern, 1), false, "tools"),
      Catch::Contains("tools.0.function.parameters/properties/b/pattern: is not supported"));
}
