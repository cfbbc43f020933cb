module;
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;

namespace tessera {

void Attributes::overflow() { fail("operator: too many attributes for one call"); }

Attributes& Attributes::add_number(double value) { return add(std::bit_cast<std::int64_t>(value)); }

Attributes& Attributes::scalar(double value) {
  return free_integer(std::bit_cast<std::int64_t>(value));
}

Attributes& Attributes::free_integer(std::int64_t value) {
  if (free_count_ >= free_room) {
    overflow();
  }
  free_[free_count_++] = value;
  return *this;
}

double AttributeReader::number() { return std::bit_cast<double>(integer()); }

double AttributeReader::scalar() { return std::bit_cast<double>(free_integer()); }

namespace {

struct Registry {
  std::mutex mutex;
  std::deque<Op> ops;  // addresses stay
  std::map<std::string, const Op*, std::less<>> by_name;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!trimmed(text).empty()) {
    const auto comma = text.find(',');
    parts.push_back(trimmed(text.substr(0, comma)));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return parts;
}

void read_schema(Op& op) {
  const std::string_view schema = op.schema;
  const auto open = schema.find('(');
  if (open == std::string_view::npos || schema.back() != ')') {
    fail(fmt::format(
        "register_op: '{}' is not a schema (expected \"name(operands; attribute: type)\")",
        schema));
  }
  op.name = std::string(schema.substr(0, open));
  const std::string_view inside = schema.substr(open + 1, schema.size() - open - 2);
  const auto semicolon = inside.find(';');
  for (std::string_view operand : split(inside.substr(0, semicolon))) {
    std::string type = "tensor";
    // `!`: an operand besides the first that an in-place operator writes; it is never converted.
    for (const std::string_view suffix : {"?", "...", "!"}) {
      if (operand.ends_with(suffix)) {
        operand.remove_suffix(suffix.size());
        type += suffix;
      }
    }
    op.operands.push_back({std::string(operand), type});
  }
  if (semicolon == std::string_view::npos) {
    return;
  }
  for (const std::string_view attribute : split(inside.substr(semicolon + 1))) {
    const auto colon = attribute.find(':');
    if (colon == std::string_view::npos) {
      fail(fmt::format("register_op: attribute '{}' of '{}' has no type", attribute, op.name));
    }
    op.parameters.push_back({std::string(trimmed(attribute.substr(0, colon))),
                             std::string(trimmed(attribute.substr(colon + 1)))});
  }
}

}  // namespace

Op::OperandPlace Op::place_of(std::size_t i, std::size_t count) const {
  const auto lists = static_cast<std::size_t>(
      std::count_if(operands.begin(), operands.end(),
                    [](const Parameter& p) { return p.type.find("...") != std::string::npos; }));
  const std::size_t single = operands.size() - lists;
  if (i < single || lists == 0) {
    return {i, -1};
  }
  const std::size_t length = std::max<std::size_t>((count - single) / lists, 1);
  return {single + (i - single) / length, static_cast<std::ptrdiff_t>((i - single) % length)};
}

const Op& register_op(Op op) {
  read_schema(op);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.by_name.contains(op.name)) {
    fail(fmt::format("register_op: operator '{}' exists already", op.name));
  }
  op.id = static_cast<int>(r.ops.size());
  r.ops.push_back(std::move(op));
  const Op& kept = r.ops.back();
  r.by_name.emplace(kept.name, &kept);
  return kept;
}

const Op& find_op(std::string_view name) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.by_name.find(name);
  if (found == r.by_name.end()) {
    std::vector<std::string> names;
    for (const auto& entry : r.by_name) {
      names.push_back(entry.first);
    }
    fail(fmt::format("find_op: no operator is called '{}'{}", name, did_you_mean(name, names)));
  }
  return *found->second;
}

std::vector<const Op*> all_ops() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  std::vector<const Op*> ops;
  for (const auto& entry : r.by_name) {
    ops.push_back(entry.second);
  }
  return ops;
}

}  // namespace tessera
