module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;

// Descriptions of the keys' table for people: names of types, ranges, sections.
namespace tessera::runs {
namespace {

struct TypeName {
  std::string operator()(const bool*) const { return "boolean"; }
  std::string operator()(const std::int64_t*) const { return "integer"; }
  std::string operator()(const double*) const { return "number"; }
  std::string operator()(const std::string*) const { return "text"; }
  std::string operator()(const std::vector<std::string>*) const { return "list of texts"; }
  std::string operator()(const Names*) const { return "text or list of texts"; }
  std::string operator()(const std::vector<std::int64_t>*) const { return "list of integers"; }
  std::string operator()(const std::vector<double>*) const { return "list of numbers"; }
  std::string operator()(const JsonText*) const { return "table"; }
  std::string operator()(const JsonList*) const { return "list of tables"; }
  std::string operator()(const WordField&) const { return "text"; }
};

std::string number(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value)
             ? fmt::format("{}", static_cast<std::int64_t>(value))
             : fmt::format("{}", value);
}

}  // namespace

std::string type_name(const Slot& slot) { return std::visit(TypeName{}, slot); }

std::string describe(const Range& range) {
  const bool low = std::isfinite(range.low);
  const bool high = std::isfinite(range.high) && range.high < 1e15;
  const std::string above =
      fmt::format("{} {}", range.low_open ? "more than" : "at least", number(range.low));
  const std::string below =
      fmt::format("{} {}", range.high_open ? "less than" : "at most", number(range.high));
  if (low && high) {
    return above + " and " + below;
  }
  return low ? above : high ? below : "";
}

std::vector<std::string> config_sections() {
  std::vector<std::string> names;
  for (const Key& key : config_keys()) {
    if (names.empty() || names.back() != key.section()) {
      names.push_back(key.section());
    }
  }
  return names;
}

}  // namespace tessera::runs
