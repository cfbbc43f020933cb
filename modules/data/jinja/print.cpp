// Texts of values: Python's str(), repr() and json.dumps, and values from JSON.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "jinja/value.hpp"

namespace tessera::data::jinja {
namespace {

/// Python's repr of a float.
std::string float_text(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

/// Whether Python's repr writes a character that is not ASCII as it is.
bool is_printable(std::uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::size_t bytes_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const std::size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size() - at);
}

/// Python's repr of a text.
void represent(std::string_view text, Writer& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string part(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const std::size_t bytes = bytes_at(text, at);
    const std::uint32_t whole = character_at(text, at);
    if (c == quote || c == '\\') {
      part += '\\';
      part += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      part += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (whole < 0x20 || whole == 0x7F || (whole > 0x7F && !is_printable(whole))) {
      part += whole < 0x100     ? fmt::format("\\x{:02x}", whole)
              : whole < 0x10000 ? fmt::format("\\u{:04x}", whole)
                                : fmt::format("\\U{:08x}", whole);
    } else {
      part += text.substr(at, bytes);
    }
    at += bytes;
    if (part.size() > 4096) {
      out.add(part);
      part.clear();
    }
  }
  out.add(part + quote);
}

void represent(const Value& value, Writer& out) {
  if (value.is_text()) {
    if (value.is_markup()) {
      throw Problem("a text of 'safe' or 'escape' within a list that is written is not supported");
    }
    represent(value.text(), out);
  } else if (value.is_undefined()) {
    out.add("Undefined");
  } else {
    print(value, out);
  }
}

void print_sequence(const Sequence& sequence, Writer& out) {
  if (sequence.form == SequenceKind::range) {
    const auto [begin, end, step] = sequence.bounds;
    out.add(step == 1 ? fmt::format("range({}, {})", begin, end)
                      : fmt::format("range({}, {}, {})", begin, end, step));
    return;
  }
  constexpr std::array begins = {"[", "(", "", "", "dict_keys([", "dict_values([", "dict_items(["};
  constexpr std::array ends = {"]", ")", "", "", "])", "])", "])"};
  const auto form = static_cast<std::size_t>(sequence.form);
  out.add(begins[form]);
  for (std::size_t i = 0; i < sequence.entries.size(); ++i) {
    out.add(i == 0 ? "" : ", ");
    represent(sequence.entries[i], out);
  }
  out.add(sequence.form == SequenceKind::tuple && sequence.entries.size() == 1 ? ",)" : ends[form]);
}

void print_dict(const Dict& dict, Writer& out) {
  out.add('{');
  bool first = true;
  for (const auto& [name, member] : dict.members()) {
    out.add(first ? "" : ", ");
    first = false;
    represent(name, out);
    out.add(": ");
    represent(member, out);
  }
  out.add('}');
}

}  // namespace

void print(const Value& value, Writer& out) {
  if (value.is_text()) {
    out.add(value.text());
  } else if (value.is_none()) {
    out.add("None");
  } else if (value.is<bool>()) {
    out.add(value.truth() ? "True" : "False");
  } else if (value.is<std::int64_t>()) {
    out.add(fmt::format("{}", value.whole()));
  } else if (value.is_big()) {
    out.add(value.digits());
  } else if (value.is<double>()) {
    out.add(float_text(value.number()));
  } else if (value.is_sequence() && value.sequence().form != SequenceKind::generator) {
    print_sequence(value.sequence(), out);
  } else if (value.is_dict()) {
    print_dict(value.dict(), out);
  } else if (!value.is_undefined()) {
    throw Problem(fmt::format("{} cannot be written as a text", value.kind()),
                  value.is_form(SequenceKind::generator) ? "make it a list with '| list'" : "");
  }
}

std::string printed(const Value& value, Budget& budget) {
  Writer out(budget);
  print(value, out);
  return out.take();
}

namespace {

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), out_(budget) {}

  void add(const Value& value, std::size_t depth) {
    if (value.is_none()) {
      out_.add("null");
    } else if (value.is<bool>()) {
      out_.add(value.truth() ? "true" : "false");
    } else if (value.is_text()) {
      add_text(value.text());
    } else if (value.is<double>() && !std::isfinite(value.number())) {
      out_.add(std::isnan(value.number()) ? "NaN" : value.number() > 0 ? "Infinity" : "-Infinity");
    } else if (value.is_number() || value.is_big()) {
      print(value, out_);
    } else if (value.is_form(SequenceKind::list) || value.is_form(SequenceKind::tuple)) {
      const List& entries = value.sequence().entries;
      add_members(entries.size(), "[]", depth, [&](std::size_t i) { add(entries[i], depth + 1); });
    } else if (value.is_dict()) {
      add_dict(value.dict(), depth);
    } else {
      throw Problem(fmt::format("{} has no form in JSON", value.kind()));
    }
  }

  std::string take() { return out_.take(); }

 private:
  void add_dict(const Dict& dict, std::size_t depth) {
    std::vector<const std::pair<std::string, Value>*> members;
    for (const auto& member : dict.members()) {
      members.push_back(&member);
    }
    if (style_.sorts) {
      out_.budget().step(members.size() * 8);
      std::ranges::sort(members, {},
                        [](const auto* member) -> const auto& { return member->first; });
    }
    add_members(members.size(), "{}", depth, [&](std::size_t i) {
      add_text(members[i]->first);
      out_.add(style_.member);
      add(members[i]->second, depth + 1);
    });
  }

  void new_line(std::size_t depth) {
    out_.add('\n');
    for (std::size_t i = 0; i < depth; ++i) {
      out_.add(style_.indent);
    }
  }

  template <class Write>
  void add_members(std::size_t count, const char* brackets, std::size_t depth, Write write) {
    out_.add(brackets[0]);
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) {
        out_.add(style_.item);
      }
      if (style_.indents) {
        new_line(depth + 1);
      }
      write(i);
    }
    if (style_.indents && count > 0) {
      new_line(depth);
    }
    out_.add(brackets[1]);
  }

  void add_text(std::string_view text) {
    std::string part = "\"";
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t bytes = bytes_at(text, at);
      add_character(text.substr(at, bytes), part);
      at += bytes;
      if (part.size() > 4096) {
        out_.add(part);
        part.clear();
      }
    }
    out_.add(part + '"');
  }

  void add_character(std::string_view character, std::string& part) const {
    constexpr std::string_view special = "\"\\\n\r\t\f\b";
    constexpr std::string_view names = "\"\\nrtfb";
    const std::uint32_t c = character_at(character, 0);
    if (const std::size_t which = special.find(character[0]); which != std::string_view::npos) {
      part += '\\';
      part += names[which];
    } else if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000)) {
      part += fmt::format("\\u{:04x}", c);
    } else if (style_.ascii && c >= 0x10000) {
      part += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10),
                          0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      part += character;
    }
  }

  const JsonStyle& style_;
  Writer out_;
};

/// Makes values of the parser's events. nlohmann's own numbers have 64 bits.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(Budget& budget) : budget_(budget) {}
  Value take() { return std::move(root_); }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(Value(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return add(Value::whole_number(fmt::format("{}", value), &budget_));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return add(text.find_first_of(".eE") == std::string::npos ? Value::whole_number(text, &budget_)
                                                              : Value(value));
  }
  bool string(string_t& value) override { return add(make_text(budget_, std::move(value))); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override {
    open_.push_back({.is_object = true});
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    open_.push_back({});
    return true;
  }
  bool end_object() override { return close(make_dict(budget_, std::move(open_.back().members))); }
  bool end_array() override { return close(make_list(budget_, std::move(open_.back().entries))); }
  bool key(string_t& name) override {
    open_.back().name = std::move(name);
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    throw Problem("it is not JSON");
  }

 private:
  struct OpenObject {
    bool is_object = false;
    std::string name = {};
    Dict members = {};
    List entries = {};
  };

  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().members.set(open_.back().name, std::move(value));
    } else {
      open_.back().entries.push_back(std::move(value));
    }
    return true;
  }
  bool close(Value value) {
    open_.pop_back();
    return add(std::move(value));
  }

  Budget& budget_;
  Value root_;
  std::vector<OpenObject> open_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter out(style, budget);
  out.add(value, 0);
  return out.take();
}

Value from_json(std::string_view json, Budget& budget) {
  Reader reader(budget);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

}  // namespace tessera::data::jinja
