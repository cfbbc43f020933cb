#include "jinja/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera::data::jinja {
namespace {

[[noreturn]] void wrong_type(const Value& value, const char* expected) {
  throw Problem(fmt::format("expected {}, got {}", expected, value.kind()));
}

/// Python's repr of a float.
std::string float_text(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) {
    text += ".0";
  }
  return text;
}

/// Python's repr of a text.
std::string represented_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string represented(const Value& value) {
  return value.is_text() ? represented_text(value.text()) : value.printed();
}

void add_json_text(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void add_json(const Value& value, std::int64_t indent, std::int64_t depth, std::string& out);

/// The members of a list or an object, each written by `write(i)`.
template <class Write>
void add_members(std::size_t count, const char* brackets, std::int64_t indent, std::int64_t depth,
                 std::string& out, Write write) {
  out += brackets[0];
  for (std::size_t i = 0; i < count; ++i) {
    if (indent >= 0) {
      out += i == 0 ? "\n" : ",\n";
      out.append(static_cast<std::size_t>(indent * (depth + 1)), ' ');
    } else if (i > 0) {
      out += ", ";
    }
    write(i);
  }
  if (indent >= 0 && count > 0) {
    out += '\n';
    out.append(static_cast<std::size_t>(indent * depth), ' ');
  }
  out += brackets[1];
}

void add_json(const Value& value, std::int64_t indent, std::int64_t depth, std::string& out) {
  if (value.is_none()) {
    out += "null";
  } else if (value.is<bool>()) {
    out += value.truth() ? "true" : "false";
  } else if (value.is_text()) {
    add_json_text(value.text(), out);
  } else if (value.is_number()) {
    out += value.printed();
  } else if (value.is_list()) {
    const List& list = value.list();
    add_members(list.size(), "[]", indent, depth, out,
                [&](std::size_t i) { add_json(list[i], indent, depth + 1, out); });
  } else if (value.is_dict()) {
    const auto& members = value.dict().members();
    add_members(members.size(), "{}", indent, depth, out, [&](std::size_t i) {
      add_json_text(members[i].first, out);
      out += ": ";
      add_json(members[i].second, indent, depth + 1, out);
    });
  } else {
    throw Problem(fmt::format("{} has no form in JSON", value.kind()));
  }
}

std::uint32_t character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) & 0x3F : 0;
  };
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) {
    return first;
  }
  if (first < 0xE0) {
    return (first & 0x1FU) << 6 | byte(1);
  }
  return first < 0xF0 ? (first & 0x0FU) << 12 | byte(1) << 6 | byte(2)
                      : (first & 0x07U) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3);
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

const Value* Dict::find(std::string_view name) const {
  const auto at = std::ranges::find(members_, name, &std::pair<std::string, Value>::first);
  return at == members_.end() ? nullptr : &at->second;
}

void Dict::set(const std::string& name, Value value) {
  const auto at = std::ranges::find(members_, name, &std::pair<std::string, Value>::first);
  if (at == members_.end()) {
    members_.emplace_back(name, std::move(value));
  } else {
    at->second = std::move(value);
  }
}

const std::string& Value::text() const {
  const auto* text = std::get_if<std::string>(&data_);
  return text != nullptr ? *text : (wrong_type(*this, "a text"), *text);
}

const List& Value::list() const {
  const auto* list = std::get_if<std::shared_ptr<const List>>(&data_);
  return list != nullptr ? **list : (wrong_type(*this, "a list"), **list);
}

const Dict& Value::dict() const {
  const auto* dict = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return dict != nullptr ? **dict : (wrong_type(*this, "an object"), **dict);
}

std::int64_t Value::whole() const {
  if (const auto* number = std::get_if<std::int64_t>(&data_)) {
    return *number;
  }
  const auto* flag = std::get_if<bool>(&data_);
  return flag != nullptr ? *flag : (wrong_type(*this, "a whole number"), 0);
}

double Value::number() const {
  const auto* number = std::get_if<double>(&data_);
  return number != nullptr ? *number : static_cast<double>(whole());
}

Namespace* Value::space() const {
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return space == nullptr ? nullptr : space->get();
}

const Function* Value::function() const {
  const auto* function = std::get_if<std::shared_ptr<const Function>>(&data_);
  return function == nullptr ? nullptr : function->get();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) {
    return false;
  }
  if (is_number()) {
    return number() != 0;
  }
  if (is_text()) {
    return !text().empty();
  }
  if (is_list()) {
    return !list().empty();
  }
  return !is_dict() || !dict().members().empty();
}

std::string Value::kind() const {
  if (const auto* undefined = std::get_if<Undefined>(&data_)) {
    return fmt::format("'{}', which is not defined", undefined->name);
  }
  return is_none()            ? "none"
         : is<bool>()         ? "a boolean"
         : is<std::int64_t>() ? "a whole number"
         : is<double>()       ? "a number"
         : is_text()          ? "a text"
         : is_list()          ? "a list"
         : is_dict()          ? "an object"
         : space() != nullptr ? "a namespace"
                              : "a function";
}

std::string Value::printed() const {
  if (is_undefined()) {
    return "";
  }
  if (is_none()) {
    return "None";
  }
  if (const auto* flag = std::get_if<bool>(&data_)) {
    return *flag ? "True" : "False";
  }
  if (const auto* whole = std::get_if<std::int64_t>(&data_)) {
    return fmt::format("{}", *whole);
  }
  if (const auto* number = std::get_if<double>(&data_)) {
    return float_text(*number);
  }
  if (is_text()) {
    return text();
  }
  std::string out;
  if (is_list()) {
    for (const Value& entry : list()) {
      out += (out.empty() ? "" : ", ") + represented(entry);
    }
    return "[" + out + "]";
  }
  if (!is_dict()) {
    throw Problem(fmt::format("{} has no text", kind()));
  }
  for (const auto& [name, member] : dict().members()) {
    out += (out.empty() ? "" : ", ") + represented_text(name) + ": " + represented(member);
  }
  return "{" + out + "}";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  }
  if (a.is_text() && b.is_text()) {
    return a.text() == b.text();
  }
  if (a.is_list() && b.is_list()) {
    return std::ranges::equal(a.list(), b.list(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const auto& members = a.dict().members();
    return members.size() == b.dict().members().size() &&
           std::ranges::all_of(members, [&](const auto& member) {
             const Value* other = b.dict().find(member.first);
             return other != nullptr && equal(member.second, *other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.is_text() && b.is_text()) {
    return a.text().compare(b.text());
  }
  throw Problem(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

Value from_json(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) {
    return json.get<bool>();
  }
  if (json.is_number_integer()) {
    return json.get<std::int64_t>();
  }
  if (json.is_number()) {
    return json.get<double>();
  }
  if (json.is_string()) {
    return json.get_ref<const std::string&>();
  }
  if (json.is_array()) {
    List list;
    list.reserve(json.size());
    for (const auto& entry : json) {
      list.push_back(from_json(entry));
    }
    return list;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [name, member] : json.items()) {
      dict.set(name, from_json(member));
    }
    return dict;
  }
  return {};
}

std::string to_json(const Value& value, std::int64_t indent) {
  std::string out;
  add_json(value, indent, 0, out);
  return out;
}

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !is_continuation(c); });
}

std::vector<std::size_t> character_starts(std::string_view text) {
  std::vector<std::size_t> starts;
  starts.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i])) {
      starts.push_back(i);
    }
  }
  starts.push_back(text.size());
  return starts;
}

bool is_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string_view stripped(std::string_view text, const std::string* set, bool left, bool right) {
  const auto goes = [&](std::size_t at, std::size_t bytes) {
    return set == nullptr ? is_space(character_at(text, at))
                          : set->find(text.substr(at, bytes)) != std::string::npos;
  };
  while (left && !text.empty()) {
    std::size_t bytes = 1;
    while (bytes < text.size() && is_continuation(text[bytes])) {
      ++bytes;
    }
    if (!goes(0, bytes)) {
      break;
    }
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && is_continuation(text[at])) {
      --at;
    }
    if (!goes(at, text.size() - at)) {
      break;
    }
    text.remove_suffix(text.size() - at);
  }
  return text;
}

}  // namespace tessera::data::jinja
