module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// The parts between commas that are within no bracket.
std::vector<std::string_view> split_outside(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    depth += (c == '[' || c == '(') ? 1 : (c == ']' || c == ')') ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.push_back(trimmed(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  if (!trimmed(text.substr(begin)).empty() || !parts.empty()) {
    parts.push_back(trimmed(text.substr(begin)));
  }
  return parts;
}

template <class T>
std::optional<T> number_from(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::string value_text(const ArgumentValue& value) {
  struct Print {
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(const Dims& v) const { return to_string(v); }
    std::string operator()(const std::string& v) const { return v; }
  };
  return std::visit(Print{}, value);
}

Json value_json(const ArgumentValue& value) {
  if (const auto* number = std::get_if<double>(&value); number != nullptr) {
    return std::isfinite(*number) ? Json(*number) : Json(value_text(value));
  }
  if (const auto* dims = std::get_if<Dims>(&value); dims != nullptr) {
    Json list = Json::array();
    for (const std::int64_t d : *dims) {
      list.push_back(d);
    }
    return list;
  }
  struct PlainValue {
    Json operator()(std::int64_t v) const { return v; }
    Json operator()(bool v) const { return v; }
    Json operator()(double v) const { return v; }
    Json operator()(const Dims&) const { return {}; }
    Json operator()(const std::string& v) const { return v; }
  };
  return std::visit(PlainValue{}, value);
}

ArgumentValue value_from_json(std::string_view type, const nlohmann::json& json) {
  if (json.is_boolean()) {
    return json.get<bool>();
  }
  if (json.is_number_integer() && type != ArgumentType<double>::name) {
    return json.get<std::int64_t>();
  }
  if (json.is_number()) {
    return json.get<double>();
  }
  if (json.is_array() && json.size() <= static_cast<std::size_t>(max_dims)) {
    Dims dims;
    for (const nlohmann::json& entry : json) {
      if (!entry.is_number_integer()) {
        return json_text(json);
      }
      dims.push_back(entry.get<std::int64_t>());
    }
    return dims;
  }
  if (json.is_string()) {
    return value_from_text(type, json.get<std::string>());
  }
  return json_text(json);
}

/// Collects the named values in the fields' order.
class ArgumentCollector {
 public:
  ArgumentCollector(const ArgumentsInfo& info, std::string_view what)
      : info_(info), what_(what), values_(info.fields.size()), given_(info.fields.size()) {}

  const ArgumentField& field(std::string_view name) {
    std::vector<std::string> names;
    for (const ArgumentField& f : info_.fields) {
      if (f.name == name) {
        return f;
      }
      names.emplace_back(f.name);
    }
    fail_input({.thing = std::string(what_),
                .wrong = fmt::format("there is no argument '{}'{}", shown(name),
                                     did_you_mean(name, names)),
                .advice = fmt::format("the arguments are: {}", join_words(names))});
  }

  void set(const ArgumentField& field, ArgumentValue value) {
    const auto i = static_cast<std::size_t>(&field - info_.fields.data());
    if (given_[i]) {
      fail_input({.thing = std::string(what_),
                  .wrong = fmt::format("argument '{}' is given twice", field.name),
                  .advice = "remove one"});
    }
    given_[i] = true;
    values_[i] = std::move(value);
  }

  Attributes attributes() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!given_[i]) {
        fail_input({.thing = std::string(what_),
                    .wrong = fmt::format("argument '{}' ({}) is missing", info_.fields[i].name,
                                         info_.fields[i].type),
                    .advice = "add it"});
      }
    }
    try {
      return info_.from_values(values_);
    } catch (const Error& error) {
      fail_at(std::string(what_), error);
    }
  }

 private:
  const ArgumentsInfo& info_;
  std::string_view what_;
  std::vector<ArgumentValue> values_;
  std::vector<bool> given_;
};

template <class T>
const T& value_as(const ArgumentValue& value, std::string_view type) {
  if (const T* v = std::get_if<T>(&value); v != nullptr) {
    return *v;
  }
  wrong_argument(type, value);
}

}  // namespace

bool operator==(const CallGroup& a, const CallGroup& b) {
  return a.ranks == b.ranks && a.name == b.name;
}
bool operator<(const CallGroup& a, const CallGroup& b) {
  return std::tie(a.ranks, a.name) < std::tie(b.ranks, b.name);
}
std::string to_string(const CallGroup& group) {
  constexpr std::size_t most_listed = 8;
  const std::vector<int>& ranks = group.ranks;
  std::string text = "ranks ";
  const int step = ranks.size() > most_listed ? ranks[1] - ranks[0] : 0;
  const bool is_even = step > 0 && std::ranges::adjacent_find(ranks, [&](int a, int b) {
                                     return b - a != step;
                                   }) == ranks.end();
  if (is_even) {
    text += fmt::format("{} to {}", ranks.front(), ranks.back());
    text += step == 1 ? std::string() : fmt::format(" by {}", step);
  } else {
    text += fmt::format("{}", fmt::join(ranks, " "));
  }
  return group.name.empty() ? text : fmt::format("{} named {}", text, group.name);
}

void Attributes::overflow() {
  fail({.thing = "operator", .wrong = "too many arguments for one call"});
}

void Attributes::retain_specs() const {
  for (std::uint32_t rest = words_.specs; rest != 0; rest &= rest - 1) {
    reinterpret_cast<const Spec*>(words_.fixed[std::countr_zero(rest)])->retain();
  }
}

void Attributes::release_specs() const {
  for (std::uint32_t rest = words_.specs; rest != 0; rest &= rest - 1) {
    reinterpret_cast<const Spec*>(words_.fixed[std::countr_zero(rest)])->release();
  }
}

void wrong_argument(std::string_view type, const ArgumentValue& value) {
  fail_input(fmt::format("a value of type {} is expected (got '{}')", type, value_text(value)));
}

std::string_view argument_text(const ArgumentValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

void wrong_arguments_type(const ArgumentsInfo& expected) {
  std::string fields;
  for (const ArgumentField& f : expected.fields) {
    fields += fmt::format("{}{}", fields.empty() ? "" : ", ", to_string(f));
  }
  fail({.thing = "operator",
        .wrong = "the call has arguments of another type",
        .expected = fmt::format("{}", fields),
        .advice = "read them as the type with which the operator is registered"});
}

std::string to_string(const ArgumentField& field) {
  return fmt::format("{}: {}{}", field.name, field.dynamic ? "dynamic " : "", field.type);
}

std::int64_t ArgumentType<std::int64_t>::from_value(const ArgumentValue& v) {
  return value_as<std::int64_t>(v, name);
}
bool ArgumentType<bool>::from_value(const ArgumentValue& v) { return value_as<bool>(v, name); }
double ArgumentType<double>::from_value(const ArgumentValue& v) {
  return value_as<double>(v, name);
}
Dims ArgumentType<Dims>::from_value(const ArgumentValue& v) { return value_as<Dims>(v, name); }

ArgumentValue ArgumentType<Device>::value(Device v) { return to_string(v); }
Device ArgumentType<Device>::from_value(const ArgumentValue& v) {
  return find_device(value_as<std::string>(v, name));
}

ArgumentValue ArgumentType<DType>::value(DType v) { return std::string(name_of(v)); }
DType ArgumentType<DType>::from_value(const ArgumentValue& v) {
  if (const auto dtype = dtype_from_name(value_as<std::string>(v, name))) {
    return *dtype;
  }
  wrong_argument(
      fmt::format("dtype (one of {})",
                  fmt::join(dtype_facts | std::views::transform(&DTypeFacts::name), ", ")),
      v);
}

ArgumentValue ArgumentType<ReduceOp>::value(ReduceOp v) { return std::string(name_of(v)); }
ReduceOp ArgumentType<ReduceOp>::from_value(const ArgumentValue& v) {
  if (const auto op = reduce_op_from_name(value_as<std::string>(v, name))) {
    return *op;
  }
  wrong_argument("reduce_op (sum, avg, max, min or product)", v);
}

ArgumentValue ArgumentType<SpecArgument>::value(const SpecArgument& v) {
  return v ? text_of(*v) : std::string("none");
}
SpecArgument ArgumentType<SpecArgument>::from_value(const ArgumentValue& v) {
  const std::string& text = value_as<std::string>(v, name);
  return {text == "none" ? SpecHandle() : Spec::parse(text)};
}

ArgumentValue value_from_text(std::string_view type, std::string_view text) {
  if (type == ArgumentType<std::int64_t>::name) {
    if (const auto v = number_from<std::int64_t>(text)) {
      return *v;
    }
  } else if (type == ArgumentType<bool>::name && (text == "true" || text == "false")) {
    return text == "true";
  } else if (type == ArgumentType<double>::name) {
    if (const auto v = number_from<double>(text)) {
      return *v;
    }
  } else if (type == ArgumentType<Dims>::name && text.starts_with('[') && text.ends_with(']')) {
    Dims dims;
    for (const std::string_view part : split_outside(text.substr(1, text.size() - 2))) {
      const auto v = number_from<std::int64_t>(part);
      if (!v || dims.size() == max_dims) {
        return std::string(text);
      }
      dims.push_back(*v);
    }
    return dims;
  }
  return std::string(text);
}

ArgumentValue ArgumentType<RandomNumbers>::value(const RandomNumbers& v) {
  return fmt::format("seed={} stream={} offset={} run={} stride={}", v.seed, v.stream, v.offset,
                     v.run, v.stride);
}
RandomNumbers ArgumentType<RandomNumbers>::from_value(const ArgumentValue& v) {
  constexpr std::string_view names[words] = {"seed=", "stream=", "offset=", "run=", "stride="};
  std::string_view rest = value_as<std::string>(v, name);
  std::uint64_t numbers[words] = {};
  for (int i = 0; i < words; ++i) {
    const std::string_view part = rest.substr(0, rest.find(' '));
    const auto number = part.starts_with(names[i])
                            ? number_from<std::uint64_t>(part.substr(names[i].size()))
                            : std::nullopt;
    if (!number) {
      wrong_argument("random (\"seed=1 stream=2 offset=3 run=0 stride=0\")", v);
    }
    numbers[i] = *number;
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

std::string to_text(const ArgumentsInfo& info, const Attributes& attributes) {
  std::string text;
  const std::vector<ArgumentValue> values = info.values(attributes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{}{}={}", i > 0 ? ", " : "", info.fields[i].name, value_text(values[i]));
  }
  return text;
}

Attributes attributes_from_text(const ArgumentsInfo& info, std::string_view text,
                                std::string_view what) {
  ArgumentCollector collected(info, what);
  for (const std::string_view part : split_outside(text)) {
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      fail_input({.thing = std::string(what),
                  .wrong = fmt::format("'{}' is not an argument", part),
                  .expected = "NAME=VALUE"});
    }
    const ArgumentField& field = collected.field(trimmed(part.substr(0, equals)));
    collected.set(field, value_from_text(field.type, trimmed(part.substr(equals + 1))));
  }
  return collected.attributes();
}

std::string to_json(const ArgumentsInfo& info, const Attributes& attributes) {
  Json object = Json::object();
  const std::vector<ArgumentValue> values = info.values(attributes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    object[std::string(info.fields[i].name)] = value_json(values[i]);
  }
  return json_text(object);
}

Attributes attributes_from_json(const ArgumentsInfo& info, std::string_view json,
                                std::string_view what) {
  const ParsedJson parsed = parse_json_object(json);
  if (!parsed.problem.empty()) {
    fail_input({.thing = std::string(what), .wrong = parsed.problem});
  }
  ArgumentCollector collected(info, what);
  for (const auto& [name, value] : parsed.value.items()) {
    const ArgumentField& field = collected.field(name);
    collected.set(field, value_from_json(field.type, value));
  }
  return collected.attributes();
}

}  // namespace tessera
