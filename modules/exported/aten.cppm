// The operators of PyTorch that a program may have, by what they are in ours.
module tessera.exported:aten;

import tessera.base;
import tessera.tensor;
import :graph;

namespace tessera::exported {

/// A value while the program runs.
struct RunValue {
  Tensor tensor = {};
  std::int64_t integer = 0;  // and a boolean
  double real = 0;
  bool is_real = false;
};

inline RunValue whole_number(std::int64_t value) {
  return {.tensor = {}, .integer = value, .real = static_cast<double>(value)};
}

/// The arguments of one call, by their places in the operator's row.
class Arguments {
 public:
  /// `values`: those that the node's arguments name by their places. `device`: of new tensors.
  Arguments(const GraphNode& node, std::span<const RunValue> values, Device device, bool training)
      : node_(node), values_(values), device_(device), training_(training) {}

  /// Whether it is given, and not None.
  bool has(std::size_t i) const { return argument(i).kind != Argument::Kind::none; }
  bool is_tensor(std::size_t i) const { return argument(i).kind == Argument::Kind::tensor; }
  /// Undefined for None. A number is a tensor without dims, of the type that PyTorch gives it.
  Tensor tensor(std::size_t i) const;
  std::vector<Tensor> tensors(std::size_t i) const;
  /// Errors: it is not a number.
  RunValue number(std::size_t i) const;
  std::int64_t integer(std::size_t i) const;
  double real(std::size_t i) const;
  bool flag(std::size_t i) const { return integer(i) != 0; }
  /// Whole numbers; none for None.
  Dims dims(std::size_t i) const;
  /// `otherwise`: for None.
  DType dtype(std::size_t i, DType otherwise) const;
  /// The first argument in the type that argument i names; as it is for None.
  Tensor typed(std::size_t i) const;
  /// An element of a list of numbers. Errors: the list is too short.
  double real_of_list(std::size_t i, std::size_t element) const;
  const std::string& text(std::size_t i) const { return argument(i).text; }

  std::size_t results() const { return node_.results.size(); }
  Device device() const { return device_; }
  /// Whether dropout is active.
  bool training() const { return training_; }
  /// Error (run) with the operator's name.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const Argument& argument(std::size_t i) const { return node_.arguments[i]; }
  /// The only item. Errors: there is none.
  const ArgumentItem& item(std::size_t i) const;
  const RunValue& value(const ArgumentItem& item) const {
    return values_[static_cast<std::size_t>(item.value)];
  }
  RunValue number(const ArgumentItem& item, bool is_real) const;

  const GraphNode& node_;
  std::span<const RunValue> values_;
  Device device_;
  bool training_;
};

/// A row of the table of operators.
struct AtenOperator {
  std::string_view name;  // "aten.add.Tensor"
  /// The names of its arguments, with "=" and the default of those that have one; "-" before one
  /// that has no effect here.
  std::string_view arguments;
  Tensors (*compute)(const Arguments&) = nullptr;
  RunValue (*compute_number)(const Arguments&) = nullptr;
  int results = 0;  // the first so many are computed; 0: all
  /// What is not supported of a node's constant arguments; empty: nothing.
  std::string (*unsupported)(const GraphNode&) = nullptr;
};

/// Whether a constant argument is true.
inline bool is_set(const GraphNode& node, std::size_t i) {
  const Argument& argument = node.arguments[i];
  return !argument.items.empty() && argument.items[0].integer != 0;
}

/// The row of an operator; -1: there is none.
int find_aten(std::string_view name);
const AtenOperator& aten_operator(int row);

// The parts of the table, by families.
std::span<const AtenOperator> pointwise_rows();
std::span<const AtenOperator> shape_rows();
std::span<const AtenOperator> reduction_rows();
std::span<const AtenOperator> layer_rows();
std::span<const AtenOperator> number_rows();

}  // namespace tessera::exported
