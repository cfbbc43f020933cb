// Calls of tools, as templates of real models write them (transformers' texts), read in parts.
#include <algorithm>
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
#include "errors.hpp"

import tessera.base;
import tessera.grammar;
import tessera.text;

using namespace tessera::text;
using nlohmann::json;
using tessera::testing::error_of;
using tessera::testing::has;

namespace {

struct Read {
  std::string text;
  std::string thoughts;
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
    all.thoughts += part.thoughts;
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
      const std::string own(form.answer_in(text));
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
  CHECK(unknown == std::set<std::string>{"GigaChat3-10B-A1.8B", "Kimi-K3",
                                         "meetkai-functionary-medium-v3.2", "muse-glimmer",
                                         "upstage-Solar-Open-100B"});
  CHECK(known.size() == 48);
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

TEST_CASE("answers in channels have thoughts, a text and calls") {
  const ToolCallForm& form = *std::ranges::find_if(
      tool_call_forms(), [](const ToolCallForm& one) { return one.of_every_answer(); });
  const auto check_read = [&](const std::string& text, const std::string& expected,
                              const std::string& thoughts, const json& calls) {
    CAPTURE(text);
    for (const std::size_t length : {1, 2, 5, 1000}) {
      const Read all = read(form, text, length);
      CHECK(all.text == expected);
      CHECK(all.thoughts == thoughts);
      CHECK(are(all.calls, calls));
    }
  };
  const json call = {{{"name", "weather"}, {"arguments", {{"place", "<|call> Rome"}}}}};
  const std::string arguments = R"({"place": "<|call> Rome"})";
  check_read(
      "<|channel|>analysis<|message|>It is 2<3 <|en<|end|><|start|>assistant<|channel|>final"
      "<|message|>Two.\n",
      "Two.\n", "It is 2<3 <|en", json::array());
  for (const std::string header : {"<|channel|>commentary to=functions.weather <|constrain|>json",
                                   " to=functions.weather<|channel|>commentary json",
                                   "<|channel|>analysis to=functions.weather"}) {
    const std::string written = header + "<|message|>" + arguments;
    check_read(written, "", "", call);
    check_read(written + "<|call|>", "", "", call);
    check_read("<|channel|>analysis<|message|>Ask.<|end|><|start|>assistant" + written, "", "Ask.",
               call);
    // Two calls, and what is said before them.
    check_read("<|channel|>commentary<|message|>I ask.<|end|><|start|>assistant" + written +
                   "<|call|><|start|>assistant" + written,
               "I ask.", "", json::array({call[0], call[0]}));
  }
  // No calls: texts without headers, arguments that do not end or are no JSON.
  check_read("Only <|a text", "Only <|a text", "", json::array());
  check_read(R"({"a": 1})", R"({"a": 1})", "", json::array());
  check_read("", "", "", json::array());
  check_read(" to=functions.weather<|message|>{\"place\": ", "{\"place\":", "", json::array());
  check_read(" to=functions.weather<|message|>[1]<|end|>", "[1]", "", json::array());
  check_read("<|channel|>fin", "", "", json::array());  // cut within a header
  check_read("<|channel|>" + std::string(1000, 'x'), "<|channel|>" + std::string(1000, 'x'), "",
             json::array());
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
  CHECK(qwens("days", R"(1, "value": 2)") == json({{"days", R"(1, "value": 2)"}}));
  CHECK(qwens("days", R"(1, "other": 2)") == json({{"days", R"(1, "other": 2)"}}));
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

namespace {

/// The form whose section begins so.
const ToolCallForm& form_of(const std::string& begin) {
  const auto all = tool_call_forms();
  const auto found = std::ranges::find(all, begin, &ToolCallForm::begin);
  REQUIRE(found != all.end());
  return *found;
}

/// A text with a call of weather follows the grammar, and is read as the call.
void check_call(const ToolCallForm& form, const std::string& text, const json& arguments) {
  CAPTURE(text);
  CHECK(follows(form, text));
  CHECK(arguments_of(form, text) == arguments);
}

void check_refused(const ToolCallForm& form, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(!follows(form, text));
  }
}

const json rome = {{"place", "Rome"}, {"days", {1, 2}}, {"unit", "C"}};
const std::string rome_json = R"({"place": "Rome", "days": [1, 2], "unit": "C"})";

}  // namespace

TEST_CASE("grammars of calls of Kimi K2 have the name, a number and the arguments") {
  const ToolCallForm& form = form_of("<|tool_calls_section_begin|>");
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<|tool_call_begin|>" + name + "<|tool_call_argument_begin|>" + arguments +
           "<|tool_call_end|>";
  };
  const auto section = [&](const std::string& calls) {
    return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
  };
  check_call(form, section(call("functions.weather:0", rome_json)), rome);
  check_call(form, section(call("functions.weather:12", R"({"place":"a"})")), {{"place", "a"}});
  check_call(form, section(call("functions.weather", R"({"place": "<|tool_call_end|>"})")),
             {{"place", "<|tool_call_end|>"}});
  check_refused(form,
                {section(call("functions.clock:0", "{}")), section(call("weather:0", rome_json)),
                 section(call("functions.weather:", rome_json)),
                 section(call("functions.weather:0:1", rome_json)),
                 section(call("functions.weather:0", R"({"days": [1]})")),
                 section(call("functions.weather:0", R"({"place": 3})")),
                 section(call("functions.weather:0", rome_json) + call("functions.time:1", "{}")),
                 section(""), call("functions.weather:0", rome_json)});
  CHECK(follows(form,
                section(call("functions.weather:0", rome_json) + call("functions.time:1", "{}")),
                true));
}

TEST_CASE("grammars of calls of Apertus have the name as the only member") {
  const ToolCallForm& form = form_of("<|tools_prefix|>");
  const auto section = [](const std::string& calls) {
    return "<|tools_prefix|>" + calls + "<|tools_suffix|>";
  };
  check_call(form, section("[{\"weather\": " + rome_json + "}]"), rome);
  check_refused(form, {section("[]"), section("{\"weather\": " + rome_json + "}"),
                       section("[{\"clock\": {}}]"), section("[{\"weather\": {}}]"),
                       section("[{\"weather\": " + rome_json + ", \"time\": {}}]"),
                       section("[{\"weather\": " + rome_json + "}, {\"time\": {}}]"),
                       "[{\"weather\": " + rome_json + "}]"});
  CHECK(follows(form, section("[{\"weather\": " + rome_json + "}, {\"time\": {}}]"), true));
}

TEST_CASE("grammars of calls of DeepSeek V3.2 say which values are texts") {
  const ToolCallForm& form = form_of("<｜DSML｜function_calls>");
  const auto argument = [](const std::string& name, bool text, const std::string& value) {
    return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (text ? "true" : "false") +
           "\">" + value + "</｜DSML｜parameter>\n";
  };
  const auto section = [](const std::string& name, const std::string& arguments) {
    return "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"" + name + "\">\n" + arguments +
           "</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  };
  check_call(
      form,
      section("weather", argument("place", true, "Rome") + argument("days", false, "[1, 2]") +
                             argument("unit", true, "C")),
      rome);
  check_call(form, section("weather", argument("place", true, "\n[1] ｜DSML｜ </｜DSML \n")),
             {{"place", "\n[1] ｜DSML｜ </｜DSML \n"}});
  check_refused(form,
                {section("weather", argument("place", false, "Rome")),
                 section("weather", argument("place", true, "a") + argument("days", true, "[1]")),
                 section("weather", argument("place", true, "a") + argument("days", false, "1")),
                 section("weather", argument("place", true, "a</｜DSML｜parameter>b")),
                 section("weather", ""), section("clock", "")});
  // What the model says is JSON is read so, whatever the schema; what is none is a text.
  CHECK(arguments_of(form, section("weather", argument("place", false, "[3]"))) ==
        json({{"place", {3}}}));
  CHECK(arguments_of(form, section("weather", argument("place", false, "[3"))) ==
        json({{"place", "[3"}}));
  CHECK(arguments_of(form, section("weather", argument("days", true, "[3]"))) ==
        json({{"days", "[3]"}}));
}

TEST_CASE("grammars of calls of Gemma 4 have texts between marks") {
  const ToolCallForm& form = form_of("<|tool_call>");
  const auto call = [](const std::string& arguments) {
    return "<|tool_call>call:weather{" + arguments + "}<tool_call|>";
  };
  const auto text = [](const std::string& value) { return "<|\"|>" + value + "<|\"|>"; };
  check_call(form, call("place:" + text("Rome") + ",days:[1,2],unit:" + text("C")), rome);
  check_call(form, call("place: " + text("{a:[\"<|\\n}")), {{"place", "{a:[\"<|\\n}"}});
  check_call(form, call("place:" + text("")), {{"place", ""}});
  check_refused(
      form,
      {call("place:Rome"), call("place:\"Rome\""), call(""), call("days:[1],place:" + text("a")),
       call("place:" + text("a") + ",days:[a]"), call("place:" + text("a") + ",unit:" + text("K")),
       call(text("place") + ":" + text("a")), call("place:" + text("a<|\"|>b")),
       "<|tool_call>call:clock{}<tool_call|>"});
  const std::string free = "<|tool_call>call:time{a:{b-1:None,c.d:[true,-1.5e3,{}]}}<tool_call|>";
  CHECK(!follows(form, free));
  CHECK(follows(form, "<|tool_call>call:time{a:{b-1:null,c.d:[true,-1.5,{}]}}<tool_call|>"));
  CHECK(arguments_of(form, free) == json::parse(R"({"a":{"b-1":null,"c.d":[true,-1500.0,{}]}})"));
  // No calls: words that are no values, and what does not end.
  const std::vector<std::string> wrong = {"place:Rome",
                                          "place",
                                          ":" + text("a"),
                                          "days:[1,]",
                                          "days:[" + std::string(100'000, '['),
                                          "place:<|\"|>Rome"};
  for (const std::string& arguments : wrong) {
    CHECK(arguments_of(form, call(arguments)).is_null());
  }
  const auto refused = [&](const char* schema) {
    const Tool tool{.name = "a", .parameters = schema};
    return error_of([&] { tool_call_grammar(form, std::span(&tool, 1), false, "tools"); });
  };
  has(refused(R"({"properties": {"b": {"type": "string", "maxLength": 3}}})"),
      "tools.0.function.parameters/properties/b: conditions of a text are not supported");
  has(refused(R"({"properties": {"b c": {}}})"), "the name 'b c' cannot be written without quotes");
  has(refused(R"({"properties": {"b": {"enum": ["<|\"|>"]}}})"), "a text has the mark");
}

TEST_CASE("grammars of calls in channels have thoughts and one call") {
  const ToolCallForm& form = *std::ranges::find_if(
      tool_call_forms(), [](const ToolCallForm& one) { return one.of_every_answer(); });
  const std::string thoughts = "<|channel|>analysis<|message|>2 < 3 <|end<|end|><|start|>assistant";
  for (const std::string header : {"<|channel|>commentary to=functions.weather <|constrain|>json",
                                   " to=functions.weather<|channel|>commentary json"}) {
    const std::string call = header + "<|message|>" + rome_json;
    check_call(form, call, rome);
    check_call(form, thoughts + call, rome);
    check_refused(
        form, {thoughts + thoughts + call, call + " and", "Well. " + call,
               thoughts + "<|channel|>final<|message|>Rome", header + "<|message|>{\"place\": 3}"});
  }
  check_refused(form, {"<|channel|>commentary to=functions.clock json<|message|>{}", thoughts});
}
