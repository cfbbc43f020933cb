// Texts and tokens of grammars in GBNF, and what is refused.
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.grammar;

using namespace tessera::grammar;
using tessera::testing::has;
using tessera::testing::input_error;

namespace {

std::shared_ptr<const TokenTree> no_tokens() {
  return std::make_shared<const TokenTree>(std::vector<std::string>{"a"});
}

bool accepts(const std::string& gbnf, const std::string& text) {
  return Constraint(parse_gbnf(gbnf), no_tokens(), "grammar").accepts(text);
}

void refused(const std::string& gbnf, const std::string& part) {
  INFO(gbnf);
  has(input_error([&] { static_cast<void>(accepts(gbnf, "")); }), part);
}

void schema_refused(const std::string& schema, const std::string& part) {
  INFO(schema);
  const auto act = [&] {
    Grammar all;
    const auto root = all.add();
    Expression expression = add_json_schema(all, schema, "schema");
    all.rules[root] = std::move(expression);
    const Constraint constraint(all, no_tokens(), "schema");
  };
  has(input_error(act), part);
}

/// The tokens that may follow a text, one after the other.
std::vector<bool> after(Constraint& constraint, const std::vector<int>& tokens) {
  auto place = constraint.begin();
  for (const int token : tokens) {
    auto next = constraint.after(place, token);
    REQUIRE(next);
    place = std::move(*next);
  }
  return constraint.allowed(place)->tokens;
}

}  // namespace

TEST_CASE("grammars in GBNF have the texts that llama.cpp gives them") {
  const std::string sums =
      "root ::= (expr \"=\" term \"\\n\")+ # lines\n"
      "expr ::= term ([-+*/] term)*\n"
      "term ::= num | \"(\" expr \")\"\n"
      "num  ::= [0-9]+";
  CHECK(accepts(sums, "1+2*(3-4)=5\n"));
  CHECK(accepts(sums, "1=1\n22=3\n"));
  CHECK(!accepts(sums, "1+=2\n"));
  CHECK(!accepts(sums, "1+2*(3-4=5\n"));
  CHECK(!accepts(sums, ""));
  const std::string times = "root ::= \"a\"{2} \"b\"{1,3} \"c\"{2,} d?\nd ::= [^a-z\\n] .";
  CHECK(accepts(times, "aabcc"));
  CHECK(accepts(times, "aabbbccccc"));
  CHECK(accepts(times, "aabccXy"));
  CHECK(accepts(times, "aabccé日"));
  CHECK(!accepts(times, "abcc"));
  CHECK(!accepts(times, "aabbbbcc"));
  CHECK(!accepts(times, "aabc"));
  CHECK(!accepts(times, "aabccx1"));
  CHECK(!accepts(times, "aabcc\xC3("));  // not UTF-8
  CHECK(accepts("root ::= \"\\x41\\u00e9\\U0001F600\\\"\"", "Aé😀\""));
  CHECK(accepts("root ::= other |\n  \"x\" (\n \"y\" )\nother ::= \"z\"", "xy"));
  // Recursion on the right takes no memory, and nesting takes some.
  CHECK(accepts("root ::= \"a\" root | \"b\"", std::string(100'000, 'a') + "b"));
  const std::string brackets = "root ::= \"(\" root \")\" | \"x\"";
  CHECK(accepts(brackets, std::string(200, '(') + "x" + std::string(200, ')')));
  CHECK(!accepts(brackets, std::string(300, '(') + "x" + std::string(300, ')')));
}

TEST_CASE("what is no grammar, or has no text, is refused") {
  refused("", "there is no rule 'root'");
  refused("root ::= other", "there is no rule 'other'");
  refused("root ::= \"a\nroot ::= \"b\"", "line 1: a text is not closed");
  refused("root ::= \"a\"\nroot ::= \"b\"", "line 2: there are two rules 'root'");
  refused("root = \"a\"", "'::=' is missing");
  refused("root ::= (\"a\"", "a bracket is not closed");
  refused("root ::= \"a\" )", "a character is not one of a rule");
  refused("root ::= [a", "a set of characters is not closed");
  refused("root ::= [z-a]", "ends before it begins");
  refused("root ::= \"a\"{3,2}", "not a number or a range");
  refused("root ::= \"a\"{99999}", "repeated more than");
  refused("root ::= \"\\q\"", "an escape is not known");
  refused("root ::= <[12]>", "tokens as parts are not supported");
  refused("root ::= " + std::string(100, '('), "too many brackets");
  refused("root ::= root \"a\" | \"a\"", "a rule begins with itself");
  refused("root ::= a root \"b\" | \"c\"\na ::= \"x\"?", "a rule begins with itself");
  refused("root ::= \"(\" root \")\"", "no text can meet it");
  std::string many;
  for (int i = 0; i < 20; ++i) {
    many += " [a-z]{9999}";
  }
  refused("root ::= (\"ab\"{9999} \"cd\"{9999}){2}" + many, "it is too large");
}

TEST_CASE("tokens may follow where all of their bytes do") {
  const std::vector<std::string> texts = {"{\"", "a\"", ":", "a", "\"}",  " ",    "true}",
                                          "tr",  "ue",  "}", "",  "\xC3", "\xA9", "\""};
  const auto tree = std::make_shared<const TokenTree>(texts);
  Constraint constraint(parse_gbnf("root ::= \"{\\\"\" [aé]+ \"\\\":\" \" \"? \"true}\""), tree,
                        "g");
  const auto only = [&](const std::vector<int>& ids) {
    std::vector<bool> expected(texts.size());
    for (const int id : ids) {
      expected[static_cast<std::size_t>(id)] = true;
    }
    return expected;
  };
  CHECK(after(constraint, {}) == only({0}));
  CHECK(after(constraint, {0}) == only({1, 3, 11}));  // a token may end within a character
  CHECK(after(constraint, {0, 11}) == only({12}));
  CHECK(after(constraint, {0, 11, 12}) == only({1, 3, 11, 13}));
  CHECK(after(constraint, {0, 1}) == only({2}));
  CHECK(after(constraint, {0, 1, 2}) == only({5, 6, 7}));
  CHECK(after(constraint, {0, 1, 2, 7}) == only({8}));
  auto place = constraint.begin();
  for (const int token : {0, 1, 2, 7, 8, 9}) {
    CHECK(!place.complete);
    place = constraint.after(place, token).value();
  }
  CHECK(place.complete);
  CHECK(!constraint.allowed(place)->any);
  CHECK(!constraint.after(place, 5));
  CHECK(!constraint.after(constraint.begin(), 10));  // a token without a text
}

TEST_CASE("no token begins what cannot end") {
  const auto tree = std::make_shared<const TokenTree>(std::vector<std::string>{"b", "c", "d"});
  // "cc" could be read, but no text follows it.
  Constraint constraint(
      parse_gbnf("root ::= \"b\" | x endless\nx ::= \"cc\"\nendless ::= \"d\" endless"), tree, "g");
  CHECK(after(constraint, {}) == std::vector<bool>{true, false, false});
  CHECK(constraint.accepts("b"));
  CHECK(!constraint.accepts("cc"));
}

TEST_CASE("what a schema says and is not supported is refused by its path") {
  schema_refused(R"({"type":"array","uniqueItems":true})", "schema/uniqueItems: is not supported");
  schema_refused(R"({"properties":{"a":{"not":{}}}})", "schema/properties/a/not: is not supported");
  schema_refused(R"({"$defs":{"x":{"if":{}}},"$ref":"#/$defs/x"})", "schema/$defs/x/if");
  schema_refused(R"({"$ref":"#/$defs/x"})", "there is no schema at this place");
  schema_refused(R"({"$ref":"other.json"})", "must name a place within the schema");
  schema_refused(R"({"$ref":"#","minimum":1})", "beside other conditions");
  schema_refused(R"({"type":"text"})", "schema/type: there is no such type");
  schema_refused(R"({"items":3})", "schema/items: a schema must be");
  schema_refused(R"({"minLength":-1})", "schema/minLength");
  schema_refused(R"({"minLength":1.5})", "schema/minLength");
  schema_refused(R"({"maximum":"3"})", "schema/maximum");
  schema_refused(R"({"type":"number","maximum":0.5})", "must be a whole number");
  schema_refused(R"({"pattern":"(?=a)b"})", "schema/pattern, line 1: the pattern has a group");
  schema_refused(R"({"pattern":"a\\b"})", "escape that is not supported");
  schema_refused(R"({"pattern":"^a$","minLength":2})", "beside other conditions of a text");
  schema_refused(R"({"format":"uri"})", "schema/format: this format is not supported");
  schema_refused(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
                 "schema/oneOf/1: a value could meet it and number 0 too");
  schema_refused(R"({"enum":[1],"minimum":3})", "enum or const beside other conditions");
  schema_refused(R"({"anyOf":[]})", "schema/anyOf: must be a list of schemas");
  schema_refused(R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "schema/allOf/type");
  schema_refused(R"({"required":[3]})", "schema/required");
}

TEST_CASE("a schema that no value meets is refused") {
  for (
      const char* const schema :
      {"false", R"({"enum":[]})", R"({"type":"string","minLength":3,"maxLength":2})",
       R"({"type":"integer","minimum":5,"maximum":4})", R"({"type":"integer","enum":["a"]})",
       R"({"type":"array","items":false,"minItems":1})",
       R"({"type":"array","minItems":4,"maxItems":3})",
       R"({"properties":{"a":false},"required":["a"]})",
       R"({"properties":{},"required":["b"],"additionalProperties":false})",
       R"({"$defs":{"a":{"properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}},"$ref":"#/$defs/a"})",
       R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})"}) {
    schema_refused(schema, "no text can meet it");
  }
}
