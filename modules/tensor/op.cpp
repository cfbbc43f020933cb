module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.calls;
import tessera.placement;

namespace tessera {

namespace {

struct Registry {
  std::mutex mutex;
  std::deque<Op> ops;  // addresses stay
  std::map<std::string, const Op*, std::less<>> by_name;
  std::array<DeviceKernel (*)(const Op& op), device_type_count> choices{};  // of kinds of devices
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

/// The operator's kernel on a kind of device, kept for the life of the process: calls of other
/// threads may have found it. Null: there is none.
const DeviceKernel* chosen(DeviceKernel (*choose)(const Op& op), const Op& op) {
  static auto* const kept = new std::deque<DeviceKernel>;  // with the registry's lock
  const DeviceKernel own = choose(op);
  if (!own && op.any_device == nullptr) {
    return nullptr;
  }
  return &kept->emplace_back(own ? own : DeviceKernel{op.any_device, nullptr});
}

void read_schema(Op& op) {
  const std::string_view schema = op.schema;
  const auto open = schema.find('(');
  if (open == std::string_view::npos || schema.back() != ')') {
    fail({.thing = "register_op",
          .wrong = fmt::format("'{}' is not a schema", schema),
          .expected = "\"name(operands; attribute: type)\""});
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
  std::string all;
  if (op.arguments != nullptr) {
    for (const ArgumentField& field : op.arguments->fields) {
      op.parameters.push_back({std::string(field.name), std::string(field.type), field.dynamic});
      all += fmt::format("{}{}", all.empty() ? "; " : ", ", to_string(field));
    }
    op.arguments_type = op.arguments->type;
  }
  // An operator that is registered again under another name has them in its schema already.
  const std::string whole =
      fmt::format("{}{})", schema.substr(0, open + 1 + std::min(semicolon, inside.size())), all);
  if (semicolon != std::string_view::npos && whole != schema) {
    fail({.thing = "register_op",
          .wrong = fmt::format("'{}' lists other arguments than its aggregate ({})", schema, whole),
          .advice = "write only the operands and register with register_op<ARGUMENTS>"});
  }
  op.schema = whole;
}

bool is_list(const Op::Parameter& operand) { return operand.type.find("...") != std::string::npos; }
bool is_optional(const Op::Parameter& operand) {
  return operand.type.find('?') != std::string::npos;
}

void count_parameters(Op& op) {
  op.counts = {};
  for (const Op::Parameter& operand : op.operands) {
    if (is_list(operand)) {
      ++op.counts.lists;
    } else if (op.counts.lists > 0) {
      fail({.thing = "register_op",
            .wrong = fmt::format("operand '{}' of '{}' follows a list", operand.name, op.name),
            .advice = "lists come last"});
    } else {
      ++op.counts.single;
    }
  }
  // Where lists begin and end, the call says: check_call looks at what is absent there.
  op.counts.required = ~std::uint64_t{0};
  for (std::size_t i = 0; i < op.counts.single && i < 64; ++i) {
    if (is_optional(op.operands[i])) {
      op.counts.required &= ~(std::uint64_t{1} << i);
    }
  }
}

}  // namespace

Op::OperandPlace Op::place_of(std::size_t i, std::size_t count) const {
  if (i < counts.single || counts.lists == 0) {
    return {i, -1};
  }
  const std::size_t length = std::max<std::size_t>((count - counts.single) / counts.lists, 1);
  return {counts.single + (i - counts.single) / length,
          static_cast<std::ptrdiff_t>((i - counts.single) % length)};
}

bool Op::writes(std::size_t operand) const {
  return in_place && (operand == 0 || operands[operand].type.ends_with('!'));
}

std::string Op::operand_name(std::size_t i, std::size_t count) const {
  const OperandPlace place = place_of(i, count);
  if (place.operand >= operands.size()) {
    return fmt::format("operand {}", i);
  }
  const std::string& operand = operands[place.operand].name;
  return place.in_list < 0 ? operand : fmt::format("{}[{}]", operand, place.in_list);
}

std::string_view name_of(Communicates communicates) {
  if (const auto call = communicates.call()) {
    return collective::name_of(collective::base_of(*call));
  }
  return communicates == Communicates::waits     ? "waits"
         : communicates == Communicates::planned ? "planned"
                                                 : "none";
}

namespace {

/// The operator's integer of this name; 0: it has none.
std::int64_t integer_of(const CollectiveContext& context, std::string_view name) {
  if (context.op.arguments == nullptr) {
    return 0;
  }
  const std::span<const ArgumentField> fields = context.op.arguments->fields;
  const auto at = std::ranges::find(fields, name, &ArgumentField::name);
  if (at == fields.end()) {
    return 0;
  }
  const ArgumentValue value = context.op.arguments->values(
      context.attributes)[static_cast<std::size_t>(at - fields.begin())];
  const auto* const integer = std::get_if<std::int64_t>(&value);
  return integer == nullptr ? 0 : *integer;
}

}  // namespace

std::int64_t received_bytes(const CollectiveContext& context) {
  if (context.op.received != nullptr) {
    return context.op.received(context);
  }
  const std::optional<collective::CallKind> kind = context.op.communicates.call();
  if (!kind) {
    return 0;
  }
  const collective::CallForm& form = collective::form_of(*kind);
  const collective::CallForm* const lists = collective::list_form_of(*kind);
  const bool of_parts = form.divides != form.joins;  // of a whole, which one side has
  const int size = context.size();
  std::int64_t bytes = 0;
  for (const ResultShape& x : form.divides ? context.read : context.made) {
    const std::int64_t total = x.shape.product();
    collective::Call call{.kind = *kind, .dtype = x.dtype, .count = total};
    collective::Segment array{.chunk = total, .total = total};
    if (of_parts && lists != nullptr) {  // whose parts may differ in length
      const auto dim = static_cast<int>(integer_of(context, "dim"));
      const std::int64_t extent = x.shape.size() == 0 ? 1 : x.shape[dim];
      call.kind = lists->kind;
      array.chunk = total == 0 ? 0 : total / extent * chunk_size(extent, size);
    } else if (form.divides || form.joins) {
      call.count = total / size;
    }
    if (!form.root_name.empty()) {
      const std::int64_t number = integer_of(context, form.root_name);
      call.root = static_cast<std::int32_t>((number % size + size) % size);
    }
    bytes += collective::received_bytes(call, {&array, 1}, context.rank, size, nullptr);
  }
  return bytes;
}

Effects effects_of(const Op& op) {
  Effects effects{.aliasing = op.aliasing,
                  .keeps_versions = op.keeps_versions,
                  .communicates = op.communicates,
                  .issues = op.issues};
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    if (op.writes(i)) {
      effects.writes.push_back(i);
    }
  }
  effects.draws = std::ranges::any_of(op.parameters, [](const Op::Parameter& parameter) {
    return parameter.type == ArgumentType<RandomNumbers>::name;
  });
  effects.workspace = op.workspace != nullptr;
  return effects;
}

const Op& register_op(Op op) {
  if (op.aliasing == Aliasing::none && (op.view != nullptr || op.in_place)) {
    op.aliasing = Aliasing::always;
  }
  read_schema(op);
  count_parameters(op);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.by_name.contains(op.name)) {
    fail({.thing = "register_op", .wrong = fmt::format("operator '{}' exists already", op.name)});
  }
  for (std::size_t type = 1; type < r.choices.size(); ++type) {
    if (r.choices[type] != nullptr && op.view == nullptr) {
      op.kernels[type] = chosen(r.choices[type], op);
    }
  }
  op.id = static_cast<int>(r.ops.size());
  r.ops.push_back(std::move(op));
  const Op& kept = r.ops.back();
  r.by_name.emplace(kept.name, &kept);
  return kept;
}

void register_kernels(DeviceType type, DeviceKernel (*choose)(const Op& op)) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto place = static_cast<std::size_t>(type);
  r.choices[place] = choose;
  for (Op& op : r.ops) {
    if (op.view == nullptr) {
      __atomic_store_n(&op.kernels[place], chosen(choose, op), __ATOMIC_RELEASE);
    }
  }
}

Attributes parse_arguments(const Op& op, std::string_view text) {
  if (op.arguments != nullptr) {
    return attributes_from_text(*op.arguments, text, op.name);
  }
  if (!text.empty()) {
    fail_input(
        {.thing = op.name, .wrong = "it has no arguments", .got = fmt::format("'{}'", text)});
  }
  return {};
}

std::string print_arguments(const Op& op, const Attributes& attributes) {
  return op.arguments == nullptr ? std::string() : to_text(*op.arguments, attributes);
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
    fail({.thing = "find_op",
          .wrong = fmt::format("no operator is called '{}'{}", name, did_you_mean(name, names))});
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
