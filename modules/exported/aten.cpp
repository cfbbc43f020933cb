// Arguments of calls, and the table of operators as one.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using Kind = Argument::Kind;

/// All rows, in one order.
const std::vector<AtenOperator>& table() {
  static const std::vector<AtenOperator> all = [] {
    std::vector<AtenOperator> rows;
    for (const std::span<const AtenOperator> part :
         {pointwise_rows(), shape_rows(), reduction_rows(), layer_rows(), number_rows()}) {
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }();
  return all;
}

const std::map<std::string_view, int>& rows_by_name() {
  static const std::map<std::string_view, int> all = [] {
    std::map<std::string_view, int> rows;
    for (const AtenOperator& row : table()) {
      const bool is_new = rows.emplace(row.name, static_cast<int>(rows.size())).second;
      require(is_new, "an operator of PyTorch has two rows");
    }
    return rows;
  }();
  return all;
}

}  // namespace

void Arguments::refuse(const std::string& what) const {
  fail({.thing = node_.target, .wrong = what});
}

const ArgumentItem& Arguments::item(std::size_t i) const {
  if (argument(i).items.size() != 1) {
    refuse(fmt::format("argument {} is not one value", i));
  }
  return argument(i).items[0];
}

RunValue Arguments::number(const ArgumentItem& item, bool is_real) const {
  if (item.value >= 0) {
    const RunValue& found = value(item);
    if (found.tensor) {
      refuse("an argument is a tensor where a number is expected");
    }
    return found;
  }
  return {.tensor = {},
          .integer = item.integer,
          .real = is_real ? item.real : static_cast<double>(item.integer),
          .is_real = is_real};
}

Tensor Arguments::tensor(std::size_t i) const {
  const Argument& given = argument(i);
  switch (given.kind) {
    case Kind::none:
      return {};
    case Kind::tensor:
      return value(item(i)).tensor;
    case Kind::integer:
    case Kind::real:
    case Kind::boolean: {
      const RunValue found = number(i);
      const DType type = found.is_real                 ? DType::f32
                         : given.kind == Kind::boolean ? DType::boolean
                                                       : DType::i64;
      return full({}, found.real, type, device_);
    }
    default:
      refuse(fmt::format("argument {} is not a tensor", i));
  }
}

std::vector<Tensor> Arguments::tensors(std::size_t i) const {
  std::vector<Tensor> all;
  for (const ArgumentItem& one : argument(i).items) {
    all.push_back(one.value < 0 ? Tensor() : value(one).tensor);
  }
  return all;
}

RunValue Arguments::number(std::size_t i) const {
  const Kind kind = argument(i).kind;
  if (kind != Kind::integer && kind != Kind::real && kind != Kind::boolean) {
    refuse(fmt::format("argument {} is not a number", i));
  }
  return number(item(i), kind == Kind::real);
}

std::int64_t Arguments::integer(std::size_t i) const {
  const RunValue found = number(i);
  return found.is_real ? static_cast<std::int64_t>(found.real) : found.integer;
}

double Arguments::real(std::size_t i) const { return number(i).real; }

Dims Arguments::dims(std::size_t i) const {
  const Argument& given = argument(i);
  if (given.kind == Kind::integer) {
    return {integer(i)};
  }
  if (given.kind != Kind::integers && given.kind != Kind::none && !given.items.empty()) {
    refuse(fmt::format("argument {} is not a list of whole numbers", i));
  }
  Dims dims;
  for (const ArgumentItem& one : given.items) {
    dims.push_back(number(one, false).integer);
  }
  return dims;
}

DType Arguments::dtype(std::size_t i, DType otherwise) const {
  return argument(i).kind == Kind::dtype ? static_cast<DType>(item(i).integer) : otherwise;
}

Tensor Arguments::typed(std::size_t i) const {
  const Tensor x = tensor(0);
  const DType type = dtype(i, x.dtype());
  return type == x.dtype() ? x : ops::cast(x, type);
}

double Arguments::real_of_list(std::size_t i, std::size_t element) const {
  const Argument& given = argument(i);
  if ((given.kind != Kind::reals && given.kind != Kind::integers) ||
      element >= given.items.size()) {
    refuse(fmt::format("argument {} has no number {}", i, element));
  }
  return number(given.items[element], given.kind == Kind::reals).real;
}

int find_aten(std::string_view name) {
  const auto found = rows_by_name().find(name);
  return found == rows_by_name().end() ? -1 : found->second;
}

const AtenOperator& aten_operator(int row) { return table()[static_cast<std::size_t>(row)]; }

std::vector<std::string> exported_operators() {
  std::vector<std::string> names;
  for (const auto& [name, row] : rows_by_name()) {
    names.emplace_back(name);
  }
  return names;
}

}  // namespace tessera::exported
