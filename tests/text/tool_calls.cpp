// Calls of tools, as templates of real models write them (transformers' texts), read in parts.
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
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
  // Calls that are not JSON, or between marks that no form has.
  CHECK(unknown == std::set<std::string>{"Apertus-8B-Instruct", "GigaChat3-10B-A1.8B", "Kimi-K3",
                                         "google-gemma-4-31B-it",
                                         "google-gemma-4-31B-it-interleaved",
                                         "meetkai-functionary-medium-v3.2", "moonshotai-Kimi-K2",
                                         "openai-gpt-oss-120b", "upstage-Solar-Open-100B"});
  CHECK(known.size() == 27);
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
