// 200 schemas with texts by jsonschema's verdict, and texts that are drawn from their grammars.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.grammar;

using namespace tessera::grammar;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

ordered_json stored() {
  std::ifstream file(TESSERA_SOURCE_FOLDER "/tests/reference/data/grammar/schemas.json");
  return ordered_json::parse(file);
}

std::wstring wide(const std::string& text) {
  std::wstring all;
  for (std::size_t i = 0; i < text.size();) {
    const auto head = static_cast<unsigned char>(text[i]);
    const int more = head < 0x80 ? 0 : head < 0xE0 ? 1 : head < 0xF0 ? 2 : 3;
    unsigned character = more == 0 ? head : head & (0x3FU >> static_cast<unsigned>(more));
    for (int k = 0; k < more; ++k) {
      character = character << 6U | (static_cast<unsigned char>(text[++i]) & 0x3FU);
    }
    all += static_cast<wchar_t>(character);
    ++i;
  }
  return all;
}

/// Whether a value meets a schema of those that are stored, read as the standard says.
class Checker {
 public:
  explicit Checker(const json& root) : root_(root) {}

  bool meets(const json& value, const json& schema) const {
    if (schema.is_boolean()) {
      return schema.get<bool>();
    }
    return std::ranges::all_of(schema.items(), [&](const auto& item) {
      return holds(item.key(), item.value(), value, schema);
    });
  }

 private:
  static bool has_type(const json& value, const std::string& type) {
    return type == "object"   ? value.is_object()
           : type == "array"  ? value.is_array()
           : type == "string" ? value.is_string()
           : type == "number" ? value.is_number()
           : type == "integer"
               ? value.is_number() && value.get<double>() == std::floor(value.get<double>())
           : type == "boolean" ? value.is_boolean()
                               : value.is_null();
  }

  bool holds(const std::string& key, const json& said, const json& value,
             const json& schema) const {
    const auto is = [&](const json& one) { return meets(value, one); };
    if (key == "$ref") {
      return meets(value, root_.at(json::json_pointer(said.get<std::string>().substr(1))));
    }
    if (key == "type") {
      return said.is_string()
                 ? has_type(value, said)
                 : std::ranges::any_of(said, [&](const json& one) { return has_type(value, one); });
    }
    if (key == "enum") {
      return std::ranges::find(said, value) != said.end();
    }
    if (key == "const") {
      return value == said;
    }
    if (key == "anyOf") {
      return std::ranges::any_of(said, is);
    }
    if (key == "allOf") {
      return std::ranges::all_of(said, is);
    }
    if (key == "oneOf") {
      return std::ranges::count_if(said, is) == 1;
    }
    return value.is_string()   ? of_text(key, said, wide(value))
           : value.is_number() ? of_number(key, said, value.get<double>())
           : value.is_array()  ? of_list(key, said, value, schema)
           : value.is_object() ? of_object(key, said, value, schema)
                               : true;
  }

  static bool of_text(const std::string& key, const json& said, const std::wstring& text) {
    if (key == "pattern") {
      return std::regex_search(text, std::wregex(wide(said)));
    }
    return key == "minLength"   ? text.size() >= said.get<std::size_t>()
           : key == "maxLength" ? text.size() <= said.get<std::size_t>()
                                : true;
  }
  static bool of_number(const std::string& key, const json& said, double value) {
    return key == "minimum"            ? value >= said.get<double>()
           : key == "maximum"          ? value <= said.get<double>()
           : key == "exclusiveMinimum" ? value > said.get<double>()
           : key == "exclusiveMaximum" ? value < said.get<double>()
                                       : true;
  }
  bool of_list(const std::string& key, const json& said, const json& list,
               const json& schema) const {
    const std::size_t first = schema.value("prefixItems", json::array()).size();
    bool fits = true;
    for (std::size_t i = 0; i < list.size(); ++i) {
      fits = fits && (key == "prefixItems" && i < first ? meets(list[i], said[i])
                      : key == "items" && i >= first    ? meets(list[i], said)
                                                        : true);
    }
    return fits && (key != "minItems" || list.size() >= said.get<std::size_t>()) &&
           (key != "maxItems" || list.size() <= said.get<std::size_t>());
  }
  bool of_object(const std::string& key, const json& said, const json& object,
                 const json& schema) const {
    if (key == "required") {
      return std::ranges::all_of(
          said, [&](const json& name) { return object.contains(name.get<std::string>()); });
    }
    const json known = schema.value("properties", json::object());
    return std::ranges::all_of(object.items(), [&](const auto& item) {
      return key == "properties" && said.contains(item.key())
                 ? meets(item.value(), said[item.key()])
             : key == "additionalProperties" && !known.contains(item.key())
                 ? meets(item.value(), said)
                 : true;
    });
  }

  const json& root_;
};

/// Single bytes, and parts of texts as vocabularies have them.
std::vector<std::string> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* const text :
       {"{\"",  "\":",  "\": ",  "\",",  "\", \"", "\"}",  "\"]",         "},", "{}", "[]",
        "[\"",  "[{\"", "null",  "true", "false",  "\\\"", "\\u",         "00", "12", "the",
        " the", "name", "value", "kind", "cat",    "dog",  "\n",          "  ", "é",  "日",
        "😀",   "-1",   ".5",    "1e",   "2024",   "-0",   "@example.org"}) {
    tokens.emplace_back(text);
  }
  return tokens;
}

Constraint constraint_of(const std::string& schema, const std::shared_ptr<const TokenTree>& tree) {
  Grammar all;
  const auto root = all.add();
  Expression expression = add_json_schema(all, schema, "schema");
  all.rules[root] = std::move(expression);
  return Constraint(all, tree, "schema");
}

/// A text by tokens that are drawn from those that may follow; empty: it did not end.
std::string drawn(Constraint& constraint, const TokenTree& tree, std::mt19937& random) {
  auto place = constraint.begin();
  std::string text;
  for (int step = 0; step < 600; ++step) {
    const auto allowed = constraint.allowed(place);
    if (place.complete && (!allowed->any || random() % 2 == 0)) {
      return text;
    }
    std::vector<int> ids;
    for (int id = 0; id < static_cast<int>(allowed->tokens.size()); ++id) {
      if (allowed->tokens[static_cast<std::size_t>(id)]) {
        // What ends a part is likelier, so that texts end.
        const char last = tree.text(id).back();
        const bool ends = last == '"' || last == '}' || last == ']';
        ids.insert(ids.end(), ends ? 1 + ids.size() / 2 + static_cast<std::size_t>(step) / 20 : 1,
                   id);
      }
    }
    REQUIRE(!ids.empty());
    const int id = ids[random() % ids.size()];
    text += tree.text(id);
    place = constraint.after(place, id).value();
  }
  return "";
}

}  // namespace

TEST_CASE("grammars of 200 schemas have the texts that meet them, and no others") {
  const auto tree = std::make_shared<const TokenTree>(std::vector<std::string>{"a"});
  const ordered_json all = stored();
  REQUIRE(all.size() == 200);
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO(i << ": " << all[i]["schema"].dump());
    Constraint constraint = constraint_of(all[i]["schema"].dump(), tree);
    for (const auto& text : all[i]["accepted"]) {
      CAPTURE(text);
      CHECK(constraint.accepts(text.get<std::string>()));
    }
    for (const auto& text : all[i]["rejected"]) {
      CAPTURE(text);
      CHECK(!constraint.accepts(text.get<std::string>()));
    }
  }
}

TEST_CASE("what bounds and escapes and known names leave out") {
  const auto tree = std::make_shared<const TokenTree>(std::vector<std::string>{"a"});
  const auto accepts = [&](const char* schema, const std::string& text) {
    return constraint_of(schema, tree).accepts(text);
  };
  const char* const between = R"({"type":"integer","exclusiveMinimum":5,"exclusiveMaximum":8})";
  CHECK(!accepts(between, "5"));
  CHECK(accepts(between, "6"));
  CHECK(accepts(between, "7"));
  CHECK(!accepts(between, "8"));
  const char* const text = R"({"type":"string"})";
  for (const char* const whole : {R"("\u0041")", R"("\uCfff")", R"("\ud7ff")", R"("\uE000")"}) {
    CHECK(accepts(text, whole));
  }
  for (const char* const half : {R"("\ud800")", R"("\uDBFF")", R"("\udc00")", R"("\uDFFF")"}) {
    CHECK(!accepts(text, half));
  }
  const char* const known =
      R"({"properties":{"ab":{"type":"integer"}},"additionalProperties":true})";
  CHECK(accepts(known, R"({"ab":1})"));
  CHECK(accepts(known, R"({"abc":"x","a":"x"})"));
  CHECK(!accepts(known, R"({"ab":"x"})"));
  CHECK(!accepts(known, R"({"c":0,"ab":"x"})"));
}

TEST_CASE("texts of tokens that are drawn from 200 schemas meet them") {
  const auto tree = std::make_shared<const TokenTree>(vocabulary());
  const ordered_json all = stored();
  const char* const path = std::getenv("TESSERA_DRAWN_TEXTS");  // NOLINT(concurrency-mt-unsafe)
  std::ofstream written(path == nullptr ? "/dev/null" : path);
  std::mt19937 random(1);
  int ended = 0;
  const int texts = path == nullptr ? 3 : 20;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const json schema = json::parse(all[i]["schema"].dump());
    INFO(i << ": " << schema.dump());
    Constraint constraint = constraint_of(all[i]["schema"].dump(), tree);
    for (int k = 0; k < texts; ++k) {
      const std::string text = drawn(constraint, *tree, random);
      if (text.empty()) {
        continue;
      }
      ++ended;
      CAPTURE(text);
      const json value = json::parse(text, nullptr, false);
      REQUIRE(!value.is_discarded());
      CHECK(Checker(schema).meets(value, schema));
      written << json{i, text}.dump() << "\n";
    }
  }
  CHECK(ended > 190 * texts);
}

TEST_CASE("tokens of one beginning may follow as each of them may") {
  std::mt19937 random(5);
  std::vector<std::string> tokens = vocabulary();
  const std::vector<std::string> parts = {"a",    "b",    "\"", "\\", "n", " ",
                                          "\xc3", "\xa9", "1",  ",",  "{"};
  while (tokens.size() < 4000) {
    std::string token = random() % 2 == 0 ? "a" : "";
    for (unsigned length = 1 + random() % 5; length > 0; --length) {
      token += parts[random() % (random() % 3 == 0 ? parts.size() : 2)];
    }
    tokens.push_back(token);
  }
  const auto tree = std::make_shared<const TokenTree>(tokens);
  for (const char* const schema :
       {R"({"type":"string"})", R"({"type":"string","pattern":"^a[ab]*$"})",
        R"({"type":"object","properties":{"aa":{"type":"integer"}}})"}) {
    INFO(schema);
    Constraint constraint = constraint_of(schema, tree);
    auto place = constraint.begin();
    for (int step = 0; step < 6; ++step) {
      const auto allowed = constraint.allowed(place);
      std::vector<std::int64_t> some;
      for (std::int64_t token = 0; token < tree->size(); ++token) {
        const bool follows = constraint.after(place, token).has_value();
        if (allowed->tokens[static_cast<std::size_t>(token)] != follows) {
          FAIL_CHECK("token '" << tree->text(token) << "' after " << step << " others");
        }
        if (follows) {
          some.push_back(token);
        }
      }
      CHECK(allowed->any == !some.empty());
      if (some.empty()) {
        break;
      }
      place = constraint.after(place, some[random() % some.size()]).value();
    }
  }
}

TEST_CASE("the tokens that may follow in a large vocabulary", "[.time]") {
  std::vector<std::string> tokens = vocabulary();
  std::mt19937 random(3);
  while (tokens.size() < 128'000) {
    std::string token(random() % 2, ' ');
    for (unsigned length = 1 + random() % 8; length > 0; --length) {
      token += static_cast<char>('a' + random() % 26);
    }
    tokens.push_back(token);
  }
  const auto tree = std::make_shared<const TokenTree>(tokens);
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  std::vector<double> times;
  for (const auto& entry : stored()) {
    const double begin = now();
    Constraint constraint = constraint_of(entry["schema"].dump(), tree);
    auto place = constraint.begin();
    times.push_back(now() - begin);
    for (const char byte : entry["accepted"].back().get<std::string>()) {
      const double before = now();
      static_cast<void>(constraint.allowed(place));
      place = constraint.after(place, static_cast<unsigned char>(byte)).value();
      times.push_back(now() - before);
    }
  }
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))] * 1e6;
  };
  WARN(times.size() << " steps, microseconds of the processor: median " << at(0.5) << ", 90% "
                    << at(0.9) << ", 99% " << at(0.99) << ", most " << at(1));
}
