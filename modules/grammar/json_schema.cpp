module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.grammar;

import :text_pattern;
import :numbers;
import :json_texts;
import tessera.base;

namespace tessera::grammar {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::set<std::string, std::less<>>;

constexpr std::int64_t most_schemas = 20'000;
constexpr std::int64_t largest_bound = std::int64_t{1} << 53;

/// What does not concern which values are right, and where schemas are that others refer to.
const Names& annotations() {
  static const Names names = {"title",     "description", "default",    "examples",
                              "$comment",  "$schema",     "deprecated", "readOnly",
                              "writeOnly", "$defs",       "definitions"};
  return names;
}

const Names& conditions() {
  static const Names names = {"type",
                              "enum",
                              "const",
                              "anyOf",
                              "oneOf",
                              "allOf",
                              "$ref",
                              "properties",
                              "required",
                              "additionalProperties",
                              "items",
                              "prefixItems",
                              "minItems",
                              "maxItems",
                              "minLength",
                              "maxLength",
                              "pattern",
                              "format",
                              "minimum",
                              "maximum",
                              "exclusiveMinimum",
                              "exclusiveMaximum"};
  return names;
}

constexpr std::array<const char*, 7> types = {"object", "array",   "string", "integer",
                                              "number", "boolean", "null"};

/// Whether a value has one of the types.
bool has_type(const Json& value, const Names& of) {
  const bool whole =
      value.is_number_integer() ||
      (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  return (value.is_object() && of.contains("object")) ||
         (value.is_array() && of.contains("array")) ||
         (value.is_string() && of.contains("string")) || (whole && of.contains("integer")) ||
         (value.is_number() && of.contains("number")) ||
         (value.is_boolean() && of.contains("boolean")) || (value.is_null() && of.contains("null"));
}

class SchemaReader {
 public:
  SchemaReader(Grammar& grammar, const Json& root, std::string place, const JsonNotation& notation)
      : root_(root),
        place_(std::move(place)),
        texts_(grammar, notation),
        grammar_(grammar),
        quote_(notation.quote) {}

  Expression read(const std::string& part) {
    const Json* schema = nullptr;
    try {
      schema = &root_.at(Json::json_pointer(part));
    } catch (const Json::exception&) {
      refuse(part, "there is no schema at this place");
    }
    return of(*schema, part, 0);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& wrong,
                           const std::string& advice = {}) const {
    fail_input({.thing = shown(place_ + path, 200), .wrong = wrong, .advice = advice});
  }

  static std::string member(const std::string& path, const std::string& name) {
    return path + "/" + name;
  }

  static const Json* find(const Json& schema, const char* name) {
    const auto found = schema.find(name);
    return found == schema.end() ? nullptr : &*found;
  }

  static bool has_any(const Json& schema, std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return schema.contains(name); });
  }

  /// The schema without what does not concern its values, and without these members.
  static Json without(const Json& schema, const Names& names) {
    Json rest = Json::object();
    for (const auto& [name, value] : schema.items()) {
      if (!annotations().contains(name) && !names.contains(name)) {
        rest[name] = value;
      }
    }
    return rest;
  }

  Expression of(const Json& schema, const std::string& path, int depth) {
    constexpr int deepest = 100;
    if (++schemas_ > most_schemas || depth > deepest) {
      refuse(path, "the schema is too large");
    }
    if (schema.is_boolean()) {
      return schema.get<bool>() ? texts_.any_value() : choice({});
    }
    if (!schema.is_object()) {
      refuse(path, "a schema must be an object, true or false");
    }
    for (const auto& [name, value] : schema.items()) {
      const bool known = annotations().contains(name) || conditions().contains(name) ||
                         (name == "$id" && path.empty());
      if (!known) {
        refuse(member(path, name), "is not supported", "leave it out");
      }
    }
    if (schema.contains("$ref")) {
      return reference(schema, path, depth);
    }
    for (const char* const name : {"anyOf", "oneOf", "allOf"}) {
      if (const Json* list = find(schema, name)) {
        return combined(schema, *list, name, path, depth);
      }
    }
    if (has_any(schema, {"enum", "const"})) {
      return listed(schema, path);
    }
    std::vector<Expression> all;
    for (const std::string& type : types_of(schema, path)) {
      all.push_back(of_type(type, schema, path, depth));
    }
    return all.size() == 1 ? std::move(all[0]) : choice(std::move(all));
  }

  const Json& resolved(const Json& ref, const std::string& path) const {
    const std::string text = ref.is_string() ? ref.get<std::string>() : "";
    if (text == "#") {
      return root_;
    }
    if (!text.starts_with("#/")) {
      refuse(member(path, "$ref"), "must name a place within the schema", "write #/$defs/NAME");
    }
    try {
      return root_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      refuse(member(path, "$ref"), "there is no schema at this place");
    }
  }

  Expression reference(const Json& schema, const std::string& path, int depth) {
    const Json& ref = schema["$ref"];
    const Json& target = resolved(ref, path);
    if (!without(schema, {"$ref", "$id"}).empty()) {
      refuse(path, "$ref beside other conditions is not supported");
    }
    const auto name = ref.get<std::string>();
    const auto [found, added] = references_.try_emplace(name, 0);
    if (added) {
      const std::size_t number = grammar_.add();
      found->second = number;
      Expression all = of(target, name.substr(1), depth + 1);
      grammar_.rules[number] = std::move(all);
      return grammar::rule(number);
    }
    return grammar::rule(found->second);
  }

  // Conditions of several schemas.

  Expression combined(const Json& schema, const Json& list, const std::string& name,
                      const std::string& path, int depth) {
    const std::string place = member(path, name);
    if (!list.is_array() || list.empty()) {
      refuse(place, "must be a list of schemas");
    }
    const Json rest = without(schema, {name, "$id"});
    if (name == "allOf") {
      Json all = rest;
      for (const Json& one : list) {
        all = merged(all, one, place);
      }
      return of(all, path, depth + 1);
    }
    if (name == "oneOf") {
      check_disjoint(list, place);
    }
    std::vector<Expression> all;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string branch = fmt::format("{}/{}", place, i);
      all.push_back(rest.empty() ? of(list[i], branch, depth + 1)
                                 : of(merged(rest, list[i], branch), branch, depth + 1));
    }
    return choice(std::move(all));
  }

  /// A schema that is met where both are.
  Json merged(const Json& one, const Json& other, const std::string& path) const {
    if (one.empty() || other == false) {
      return other;
    }
    if (other == true) {
      return one;
    }
    if (!other.is_object()) {
      refuse(path, "a schema must be an object, true or false");
    }
    const auto apart = [](const Json& a, const Json& b) {
      return (a.contains("additionalProperties") && b.contains("properties")) ||
             (a.contains("items") && b.contains("prefixItems"));
    };
    if (has_any(one, {"$ref", "enum", "const"}) || has_any(other, {"$ref"}) || apart(one, other) ||
        apart(other, one)) {
      refuse(path, "these conditions are not supported beside those of another schema");
    }
    Json both = one;
    const Json more = without(other, {});
    for (const auto& [name, value] : more.items()) {
      Json& there = both[name];
      if (there.is_null() || there == value) {
        there = value;
      } else if (name == "required" && there.is_array() && value.is_array()) {
        there.insert(there.end(), value.begin(), value.end());
      } else if (name == "properties" && there.is_object() && value.is_object()) {
        for (const auto& [property, schema] : value.items()) {
          if (there.contains(property)) {
            refuse(member(member(path, name), property), "is there twice");
          }
          there[property] = schema;
        }
      } else {
        refuse(member(path, name), "is also said beside this schema");
      }
    }
    return both;
  }

  void check_disjoint(const Json& list, const std::string& path) const {
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if (!are_disjoint(list[i], list[k], path, 0)) {
          refuse(fmt::format("{}/{}", path, i),
                 fmt::format("a value could meet it and number {} too", k), "use anyOf");
        }
      }
    }
  }

  /// Whether no value that is written for one of the schemas meets the other; false where this is
  /// not known.
  bool are_disjoint(const Json& one, const Json& other, const std::string& path, int depth) const {
    constexpr int deepest = 10;
    if (depth > deepest || !one.is_object() || !other.is_object()) {
      return false;
    }
    if (one.contains("$ref")) {
      return are_disjoint(resolved(one["$ref"], path), other, path, depth + 1);
    }
    if (other.contains("$ref")) {
      return are_disjoint(one, resolved(other["$ref"], path), path, depth + 1);
    }
    const auto own = values_of(one);
    const auto others = values_of(other);
    if (own && others) {
      return std::ranges::none_of(*own, [&](const Json& value) {
        return std::ranges::find(*others, value) != others->end();
      });
    }
    if (one.contains("type") && other.contains("type") && !share_types(one, other, path)) {
      return true;
    }
    const Json* properties = find(one, "properties");
    const Json* of_other = find(other, "properties");
    if (properties == nullptr || of_other == nullptr || !properties->is_object() ||
        !of_other->is_object()) {
      return false;
    }
    return std::ranges::any_of(properties->items(), [&](const auto& item) {
      const auto found = of_other->find(item.key());
      return found != of_other->end() && requires_member(one, item.key()) &&
             requires_member(other, item.key()) &&
             are_disjoint(item.value(), *found, path, depth + 1);
    });
  }

  static std::optional<std::vector<Json>> values_of(const Json& schema) {
    if (const Json* value = find(schema, "const")) {
      return std::vector{*value};
    }
    const Json* list = find(schema, "enum");
    return list != nullptr && list->is_array() ? std::optional(list->get<std::vector<Json>>())
                                               : std::nullopt;
  }

  bool share_types(const Json& one, const Json& other, const std::string& path) const {
    Names own = types_of(one, path);
    const Names others = types_of(other, path);
    return std::ranges::any_of(own, [&](const std::string& type) {
      return others.contains(type) || (type == "integer" && others.contains("number")) ||
             (type == "number" && others.contains("integer"));
    });
  }

  static bool requires_member(const Json& schema, const std::string& name) {
    const Json* list = find(schema, "required");
    return list != nullptr && list->is_array() &&
           std::ranges::find(*list, Json(name)) != list->end();
  }

  // Conditions of one value.

  /// Those that are named, or else that the other conditions are about.
  Names types_of(const Json& schema, const std::string& path) const {
    Names names;
    if (const Json* type = find(schema, "type")) {
      for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
        const std::string name = one.is_string() ? one.get<std::string>() : "";
        if (std::ranges::find(types, name) == types.end()) {
          refuse(member(path, "type"), "there is no such type");
        }
        names.insert(name);
      }
      return names;
    }
    if (has_any(schema, {"properties", "required", "additionalProperties"})) {
      names.insert("object");
    }
    if (has_any(schema, {"items", "prefixItems", "minItems", "maxItems"})) {
      names.insert("array");
    }
    if (has_any(schema, {"minLength", "maxLength", "pattern", "format"})) {
      names.insert("string");
    }
    if (has_any(schema, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) {
      names.insert("number");
    }
    return names.empty() ? Names(types.begin(), types.end()) : names;
  }

  void check_name(const std::string& name, const std::string& path) const {
    constexpr std::size_t longest_name = 200;
    if (name.size() > longest_name) {
      refuse(path, fmt::format("a name has more than {} bytes", longest_name));
    }
    if (!quote_.empty() && !is_bare_name(name)) {
      refuse(path, fmt::format("the name '{}' cannot be written without quotes", shown(name, 40)),
             "use letters, digits, '_', '-' and '.'");
    }
  }

  /// A value that is given, with blanks between its parts.
  Expression literal(const Json& value, const std::string& path) {
    if (value.is_array()) {
      std::vector<Expression> all;
      for (const Json& one : value) {
        all.push_back(literal(one, path));
      }
      const auto count = std::ssize(value);
      return texts_.list(std::move(all), choice({}), count, count);
    }
    if (value.is_object()) {
      std::vector<JsonMember> members;
      for (const auto& [name, one] : value.items()) {
        check_name(name, path);
        members.push_back({.name = name, .value = literal(one, path), .required = true});
      }
      return texts_.object(members, choice({}));
    }
    if (!value.is_string()) {
      return bytes(json_text(value));
    }
    const auto text = value.get<std::string>();
    if (!quote_.empty() && text.find(quote_) != std::string::npos) {
      refuse(path, fmt::format("a text has the mark '{}', which ends texts", quote_));
    }
    return texts_.text(text);
  }

  Expression listed(const Json& schema, const std::string& path) {
    if (!without(schema, {"enum", "const", "type", "$id"}).empty() ||
        (schema.contains("enum") && schema.contains("const"))) {
      refuse(path, "enum or const beside other conditions than a type is not supported");
    }
    const auto values = values_of(schema);
    if (!values) {
      refuse(member(path, "enum"), "must be a list");
    }
    const Names names = types_of(schema, path);
    std::vector<Expression> all;
    for (const Json& value : *values) {
      if (!schema.contains("type") || has_type(value, names)) {
        all.push_back(literal(value, path));
      }
    }
    return choice(std::move(all));
  }

  Expression of_type(const std::string& type, const Json& schema, const std::string& path,
                     int depth) {
    if (type == "object") {
      return object(schema, path, depth);
    }
    if (type == "array") {
      return array(schema, path, depth);
    }
    if (type == "string") {
      return string(schema, path);
    }
    if (type == "boolean") {
      return choice({bytes("true"), bytes("false")});
    }
    return type == "null" ? bytes("null") : number(schema, path, type == "integer");
  }

  std::optional<std::int64_t> count(const Json& schema, const char* name,
                                    const std::string& path) const {
    const Json* value = find(schema, name);
    if (value == nullptr) {
      return std::nullopt;
    }
    constexpr std::int64_t most = 10'000;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (!(number >= 0 && number <= most) || number != std::floor(number)) {
      refuse(member(path, name), fmt::format("must be a whole number from 0 to {}", most));
    }
    return static_cast<std::int64_t>(number);
  }

  std::optional<double> bound(const Json& schema, const char* name, const std::string& path) const {
    const Json* value = find(schema, name);
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->is_number() ||
        !(std::abs(value->get<double>()) <= static_cast<double>(largest_bound))) {
      refuse(member(path, name), "must be a number of at most 2^53");
    }
    return value->get<double>();
  }

  Expression number(const Json& schema, const std::string& path, bool whole) const {
    DecimalBounds bounds;
    const auto add = [&](const char* name, double direction, bool included) {
      const auto value = bound(schema, name, path);
      if (!value) {
        return;
      }
      if (!whole && *value != std::floor(*value)) {
        refuse(member(path, name), "must be a whole number");
      }
      auto& own = direction > 0 ? bounds.bounds.least : bounds.bounds.most;
      bool& excluded = direction > 0 ? bounds.above : bounds.below;
      double inside = direction > 0 ? std::ceil(*value) : std::floor(*value);
      if (whole && !included && inside == *value) {
        inside += direction;
      }
      const auto limit = static_cast<std::int64_t>(inside);
      const bool narrower = !own || (direction > 0 ? limit > *own : limit < *own);
      if (narrower) {
        own = limit;
        excluded = !whole && !included;
      } else if (limit == *own) {
        excluded = excluded || (!whole && !included);
      }
    };
    add("minimum", 1, true);
    add("exclusiveMinimum", 1, false);
    add("maximum", -1, true);
    add("exclusiveMaximum", -1, false);
    return whole ? whole_numbers(bounds.bounds) : decimal_numbers(bounds);
  }

  Expression string(const Json& schema, const std::string& path) {
    const auto least = count(schema, "minLength", path);
    const auto most = count(schema, "maxLength", path);
    const Json* pattern = find(schema, "pattern");
    const Json* format = find(schema, "format");
    if (!quote_.empty() && (least || most || pattern != nullptr || format != nullptr)) {
      refuse(path,
             "conditions of a text are not supported where the model writes texts between marks",
             "leave them out, or use enum");
    }
    if (pattern == nullptr && format == nullptr) {
      return least.value_or(0) > most.value_or(largest_bound)
                 ? choice({})
                 : texts_.string(least.value_or(0), most.value_or(-1));
    }
    if (least || most || (pattern != nullptr && format != nullptr)) {
      refuse(path, "pattern or format beside other conditions of a text is not supported");
    }
    const char* const name = pattern != nullptr ? "pattern" : "format";
    const Json& value = pattern != nullptr ? *pattern : *format;
    if (!value.is_string()) {
      refuse(member(path, name), "must be a text");
    }
    const std::string own =
        pattern != nullptr ? value.get<std::string>() : pattern_of_format(value.get<std::string>());
    if (own.empty() && format != nullptr) {
      refuse(member(path, name), "this format is not supported", "leave it out");
    }
    return sequence(
        {bytes("\""), json_pattern(own, shown(place_ + member(path, name), 200)), bytes("\"")});
  }

  Expression array(const Json& schema, const std::string& path, int depth) {
    const auto least = count(schema, "minItems", path).value_or(0);
    const auto most = count(schema, "maxItems", path).value_or(largest_bound);
    std::vector<Expression> first;
    if (const Json* list = find(schema, "prefixItems")) {
      if (!list->is_array()) {
        refuse(member(path, "prefixItems"), "must be a list of schemas");
      }
      for (std::size_t i = 0; i < list->size(); ++i) {
        first.push_back(of((*list)[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1));
      }
    }
    const Json* items = find(schema, "items");
    Expression others =
        items == nullptr ? texts_.any_value() : of(*items, member(path, "items"), depth + 1);
    return texts_.list(std::move(first), std::move(others), least, most);
  }

  Expression object(const Json& schema, const std::string& path, int depth) {
    const Json none = Json::object();
    const Json* properties = find(schema, "properties");
    const Json* required = find(schema, "required");
    const Json* additional = find(schema, "additionalProperties");
    if ((properties != nullptr && !properties->is_object()) ||
        (required != nullptr && !required->is_array())) {
      refuse(path, "properties must be an object, and required a list");
    }
    std::vector<JsonMember> members;
    const auto& known = properties == nullptr ? none : *properties;
    for (const auto& [name, value] : known.items()) {
      members.push_back({.name = name,
                         .value = of(value, member(member(path, "properties"), name), depth + 1),
                         .required = requires_member(schema, name)});
    }
    const std::string place = member(path, "additionalProperties");
    // Without a word about them, others are left out where some are described.
    Expression others = additional != nullptr   ? of(*additional, place, depth + 1)
                        : properties != nullptr ? choice({})
                                                : texts_.any_value();
    for (const Json& name : required == nullptr ? none : *required) {
      if (!name.is_string()) {
        refuse(member(path, "required"), "must be a list of names");
      }
      const auto text = name.get<std::string>();
      if (std::ranges::find(members, text, &JsonMember::name) == members.end()) {
        Expression value = additional == nullptr ? texts_.any_value() : others;
        members.push_back({.name = text, .value = std::move(value), .required = true});
      }
    }
    for (const JsonMember& one : members) {
      check_name(one.name, path);
    }
    return texts_.object(members, std::move(others));
  }

  const Json& root_;
  std::string place_;
  JsonTexts texts_;
  Grammar& grammar_;
  std::string quote_;  // the mark around texts, while names have none; empty: JSON
  std::map<std::string, std::size_t> references_;  // rules, by what refers to them
  std::int64_t schemas_ = 0;
};

}  // namespace

Expression add_json_schema(Grammar& grammar, std::string_view schema, const std::string& place,
                           const JsonNotation& notation) {
  return JsonSchema(schema, place).add(grammar, {}, notation);
}

struct JsonSchema::Parsed {
  Json root;
  std::string place;
};

JsonSchema::JsonSchema(std::string_view schema, std::string place)
    : parsed_(
          std::make_shared<const Parsed>(Parsed{parse_ordered_json(schema), std::move(place)})) {}

Expression JsonSchema::add(Grammar& grammar, const std::string& part,
                           const JsonNotation& notation) const {
  return SchemaReader(grammar, parsed_->root, parsed_->place, notation).read(part);
}

Expression add_json_object(Grammar& grammar, const JsonNotation& notation) {
  return JsonTexts(grammar, notation).any_object();
}

}  // namespace tessera::grammar
