module;
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
module tessera.evaluation;

import :yaml_file;
import tessera.base;

namespace tessera::evaluation {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t most_bytes = std::size_t{1} << 20;
constexpr std::size_t most_values = 100'000;
constexpr int most_levels = 32;
constexpr int most_files = 16;

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (text == word) {
      return true;
    }
  }
  return false;
}

/// A whole number: decimal, with 0x, or from a 0 on octal; underscores do not count.
bool read_whole(std::string_view text, std::int64_t& into) {
  std::string digits;
  for (const char c : text) {
    if (c != '_') {
      digits += c;
    }
  }
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) {
    digits.erase(0, 1);
  }
  const int base = digits.starts_with("0x") ? 16 : digits.size() > 1 && digits[0] == '0' ? 8 : 10;
  const std::string_view body = std::string_view(digits).substr(base == 16 ? 2 : 0);
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), into, base);
  into = negative ? -into : into;
  return !body.empty() && body[0] != '-' && error == std::errc() &&
         end == body.data() + body.size();
}

/// A number with a point, as YAML 1.1 has it: an exponent has a sign.
bool read_number(std::string_view text, double& into) {
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const std::size_t exponent = digits.find_first_of("eE");
  const bool signed_exponent =
      exponent == std::string_view::npos ||
      (exponent + 1 < digits.size() && is_one_of(digits.substr(exponent + 1, 1), {"+", "-"}));
  if (digits.find('.') == std::string_view::npos || !signed_exponent ||
      digits.find_first_not_of("0123456789.eE+-") != std::string_view::npos) {
    return false;
  }
  std::string plain(digits);
  if (exponent != std::string_view::npos && plain[exponent + 1] == '+') {
    plain.erase(exponent + 1, 1);
  }
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), into);
  return error == std::errc() && end == plain.data() + plain.size();
}

Json plain_value(const std::string& text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) {
    return nullptr;
  }
  if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) {
    return true;
  }
  if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
    return false;
  }
  std::int64_t whole = 0;
  if (read_whole(text, whole)) {
    return whole;
  }
  double number = 0;
  return read_number(text, number) ? Json(number) : Json(text);
}

/// One file.
class YamlReader {
 public:
  explicit YamlReader(const std::string& file) : file_(file) {}

  Json read() {
    std::ifstream stream(file_, std::ios::binary);
    std::string text(most_bytes + 1, '\0');
    stream.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(stream.gcount()));
    if (!fs::is_regular_file(file_) || text.empty()) {
      fail_input({.thing = file_, .wrong = "the file cannot be read, or is empty"});
    }
    if (text.size() > most_bytes) {
      fail_input({.thing = file_, .wrong = "it is too large", .expected = "at most 1 MiB"});
    }
    try {
      const YAML::Node root = YAML::Load(text);
      if (!root.IsMap()) {
        fail_input({.thing = file_, .wrong = "it has no names and values"});
      }
      return value_of(root, 0);
    } catch (const YAML::Exception& error) {
      fail_input({.thing = fmt::format("{}:{}", file_, error.mark.line + 1),
                  .wrong = shown(error.msg, 200)});
    }
  }

 private:
  [[noreturn]] void refuse(const YAML::Node& node, const std::string& wrong) const {
    fail_input({.thing = fmt::format("{}:{}", file_, node.Mark().line + 1), .wrong = wrong});
  }

  Json value_of(const YAML::Node& node, int level) {
    if (++values_ > most_values || level > most_levels) {
      refuse(node,
             fmt::format("there are more than {} values or {} levels", most_values, most_levels));
    }
    if (node.Tag() == function_tag && node.IsScalar()) {
      return {{function_tag, node.Scalar()}};
    }
    constexpr std::string_view standard = "tag:yaml.org,2002:";
    const std::string_view tag = node.Tag();
    const bool own = is_one_of(tag, {"", "?", "!"});
    if (!own && !(tag.starts_with(standard) &&
                  is_one_of(tag.substr(standard.size()),
                            {"str", "int", "float", "bool", "null", "seq", "map"}))) {
      refuse(node, fmt::format("the tag '{}' is not supported", shown(node.Tag(), 60)));
    }
    if (node.IsMap()) {
      Json object = Json::object();
      for (const auto& entry : node) {
        if (!entry.first.IsScalar()) {
          refuse(entry.first, "a name is no text");
        }
        if (object.contains(entry.first.Scalar())) {
          refuse(entry.first, fmt::format("'{}' is there twice", shown(entry.first.Scalar(), 60)));
        }
        object[entry.first.Scalar()] = value_of(entry.second, level + 1);
      }
      return object;
    }
    if (node.IsSequence()) {
      Json list = Json::array();
      for (const YAML::Node& one : node) {
        list.push_back(value_of(one, level + 1));
      }
      return list;
    }
    if (!node.IsScalar()) {
      return nullptr;
    }
    const bool plain = tag == "?" || (!own && !tag.ends_with(":str"));
    return plain ? plain_value(node.Scalar()) : Json(node.Scalar());
  }

  const std::string& file_;
  std::size_t values_ = 0;
};

Json with_included(const std::string& file, std::set<std::string>& read) {
  if (!read.insert(fs::weakly_canonical(file).string()).second ||
      read.size() > static_cast<std::size_t>(most_files)) {
    fail_input({.thing = file, .wrong = "files include each other, or more than 16"});
  }
  Json own = YamlReader(file).read();
  const auto found = own.find("include");
  if (found == own.end()) {
    return own;
  }
  Json below = Json::object();
  for (const Json& one : found->is_array() ? *found : Json::array({*found})) {
    if (!one.is_string()) {
      fail_input({.thing = file, .wrong = "'include' must name files"});
    }
    below.update(
        with_included((fs::path(file).parent_path() / one.get<std::string>()).string(), read));
  }
  own.erase("include");
  below.update(own);
  return below;
}

}  // namespace

Json read_yaml_file(const std::string& file) {
  std::set<std::string> read;
  return with_included(file, read);
}

}  // namespace tessera::evaluation
