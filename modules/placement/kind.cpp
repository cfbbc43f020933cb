module;
#include <fmt/format.h>

#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <vector>
module tessera.placement;

import tessera.base;

namespace tessera {

namespace {

constexpr const char* allowed =
    "expected Shard(dim), Replicate, Partial(sum | avg | max | min | product | norm(order)) or "
    "StridedShard(dim, split_factor)";

[[noreturn]] void refuse(std::string_view text) {
  fail_input({.thing = "placement",
              .wrong = fmt::format("cannot read '{}'", shown(text)),
              .advice = allowed});
}

std::string without_blanks(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      kept += c;
    }
  }
  return kept;
}

std::optional<int> integer(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

/// "norm(2)" -> 2.
std::optional<double> norm_order_of(std::string_view argument) {
  constexpr std::string_view prefix = "norm(";
  if (!argument.starts_with(prefix) || !argument.ends_with(')')) {
    return std::nullopt;
  }
  argument.remove_prefix(prefix.size());
  argument.remove_suffix(1);
  double order = 0;
  const auto [end, error] =
      std::from_chars(argument.data(), argument.data() + argument.size(), order);
  if (error != std::errc() || end != argument.data() + argument.size()) {
    return std::nullopt;
  }
  return order;
}

/// A dim that fits in a Placement.
int dim_of(std::string_view text, std::string_view whole) {
  const std::optional<int> dim = integer(text);
  if (!dim || *dim < -max_dims || *dim >= max_dims) {
    refuse(whole);
  }
  return *dim;
}

}  // namespace

double Placement::norm_order() const {
  return is_norm() ? static_cast<double>(std::bit_cast<float>(argument_)) : 0;
}

bool has_norm_partial(double order) {
  return order > 0 && order != 1 && order < std::numeric_limits<float>::max() &&
         std::isnormal(static_cast<float>(order)) &&
         static_cast<double>(static_cast<float>(order)) == order;
}

Placement NormPartial(double order) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (order == 0 || order == 1) {
    return Partial();
  }
  if (order == infinity || order == -infinity) {
    return Partial(order > 0 ? ReduceOp::max : ReduceOp::min);
  }
  if (!has_norm_partial(order)) {
    fail_input(
        fmt::format("Partial(norm({})): no partial norm has this order (expected 0, an infinity, "
                    "or a number above 0 that f32 holds exactly); take the sum of |x|^p, and its "
                    "root after the reduction",
                    order));
  }
  return {PlacementKind::partial, ReduceOp::sum, -1,
          std::bit_cast<std::int32_t>(static_cast<float>(order))};
}

std::string to_string(Placement placement) {
  switch (placement.kind()) {
    case PlacementKind::replicate:
      return "Replicate";
    case PlacementKind::shard:
      return fmt::format("Shard({})", placement.dim());
    case PlacementKind::partial:
      if (placement.is_norm()) {
        return fmt::format("Partial(norm({}))", placement.norm_order());
      }
      return fmt::format("Partial({})", name_of(placement.reduce_op()));
    case PlacementKind::strided_shard:
      break;
  }
  return fmt::format("StridedShard({}, {})", placement.dim(), placement.split_factor());
}

std::string to_string(std::span<const Placement> placements) {
  std::string text = "[";
  for (const Placement& placement : placements) {
    text += text.size() > 1 ? ", " : "";
    text += to_string(placement);
  }
  return text + "]";
}

Placement parse_placement(std::string_view text) {
  const std::string plain = without_blanks(text);
  std::string_view name = plain;
  std::string_view argument;
  if (const std::size_t open = name.find('('); open != std::string_view::npos) {
    if (name.back() != ')') {
      refuse(text);
    }
    argument = name.substr(open + 1, name.size() - open - 2);
    name = name.substr(0, open);
  }
  if (name == "Replicate" && argument.empty()) {
    return Replicate();
  }
  if (const auto order = norm_order_of(argument); name == "Partial" && order) {
    return NormPartial(*order);
  }
  if (name == "Partial") {
    const std::optional<ReduceOp> op =
        argument.empty() ? ReduceOp::sum : reduce_op_from_name(argument);
    if (!op) {
      refuse(text);
    }
    return Partial(*op);
  }
  if (name == "Shard") {
    return Shard(dim_of(argument, text));
  }
  if (name == "StridedShard") {
    const std::size_t comma = argument.find(',');
    if (comma == std::string_view::npos) {
      refuse(text);
    }
    const std::optional<int> factor = integer(argument.substr(comma + 1));
    if (!factor || *factor < 1) {
      refuse(text);
    }
    return StridedShard(dim_of(argument.substr(0, comma), text), *factor);
  }
  refuse(text);
}

std::vector<Placement> parse_placements(std::string_view text) {
  const std::string plain = without_blanks(text);
  if (plain.size() < 2 || plain.front() != '[' || plain.back() != ']') {
    fail_input({.thing = "placements",
                .wrong = fmt::format("cannot read '{}'", shown(text)),
                .expected = "a list such as [Shard(0), Replicate]"});
  }
  std::vector<Placement> placements;
  std::string_view rest = std::string_view(plain).substr(1, plain.size() - 2);
  while (!rest.empty()) {
    int depth = 0;  // a comma within parentheses does not end a placement
    std::size_t end = 0;
    for (; end < rest.size() && (depth > 0 || rest[end] != ','); ++end) {
      depth += rest[end] == '(' ? 1 : rest[end] == ')' ? -1 : 0;
    }
    placements.push_back(parse_placement(rest.substr(0, end)));
    if (end + 1 == rest.size()) {
      refuse(text);  // a comma with nothing after it
    }
    rest.remove_prefix(end < rest.size() ? end + 1 : end);
  }
  return placements;
}

Placement resolved(Placement placement, int tensor_ndim) {
  if (!placement.is_shard() && !placement.is_strided_shard()) {
    return placement;
  }
  if (placement.dim() < -tensor_ndim || placement.dim() >= tensor_ndim) {
    fail_input(fmt::format("{} for a tensor of {} dims (expected a dim from {} to {})",
                           to_string(placement), tensor_ndim, -tensor_ndim, tensor_ndim - 1));
  }
  const int dim = placement.dim() < 0 ? placement.dim() + tensor_ndim : placement.dim();
  return placement.is_shard() ? Shard(dim) : StridedShard(dim, placement.split_factor());
}

}  // namespace tessera
