// The JSON of a program as a graph. It is taken as hostile: what is not known is refused, all of it
// at once.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/exported_types.hpp>
#include <tessera/json.hpp>
#include <tessera/json_reading.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.checkpoint;
import tessera.tensor;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using Kind = Argument::Kind;
using nlohmann::json;

constexpr std::int64_t schema_major = 8;
constexpr std::int64_t most_levels = 64;  // of modules in modules
constexpr std::string_view advice = "export the program again with torch.export.save";

/// A union of the schema: an object with one member.
struct Choice {
  std::string name;
  const json& value;
};
Choice choice_of(const json& object) {
  if (!object.is_object() || object.size() != 1) {
    throw JsonProblem("a choice does not have exactly one member");
  }
  return {object.begin().key(), *object.begin()};
}

/// The name of a symbolic size that is one symbol, "Symbol('s0', positive=True, integer=True)" or
/// "s0"; empty: another expression.
std::string symbol_of(const json& expression) {
  const auto text = json_member<std::string>(expression, "expr_str");
  constexpr std::string_view symbol = "Symbol('";
  const auto is_name = [](std::string_view name) {
    return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_';
    });
  };
  std::string_view name = text;
  if (name.starts_with(symbol)) {
    name.remove_prefix(symbol.size());
    const std::size_t end = name.find('\'');
    const std::string_view rest = name.substr(std::min(end, name.size()));
    if (rest.find('(') != std::string_view::npos || rest.find(')') != rest.size() - 1) {
      return "";
    }
    name = name.substr(0, end);
  }
  return is_name(name) ? std::string(name) : "";
}

/// "range_constraints": by symbol.
std::map<std::string, DimRange> ranges_of(const json& program) {
  std::map<std::string, DimRange> ranges;
  for (const auto& [symbol, constraint] : json_member(program, "range_constraints").items()) {
    DimRange range;
    const auto set = [&constraint](const char* name, std::int64_t& value) {
      if (const auto found = constraint.find(name);
          found != constraint.end() && !found->is_null()) {
        value = json_value<std::int64_t>(*found, name);
      }
    };
    if (!constraint.is_object()) {
      throw JsonProblem("a range of 'range_constraints' is not an object");
    }
    set("min_val", range.low);
    set("max_val", range.high);
    if (range.low > range.high) {
      throw JsonProblem(fmt::format("the range of '{}' is empty ({} to {})", shown(symbol, 40),
                                    range.low, range.high));
    }
    ranges.emplace(symbol, range);
  }
  return ranges;
}

double real_of(const json& value) {
  if (value.is_string()) {  // what JSON has no numbers for
    const auto& text = value.get_ref<const std::string&>();
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (text == "Infinity" || text == "-Infinity") {
      return text[0] == '-' ? -infinity : infinity;
    }
    if (text == "NaN") {
      return std::numeric_limits<double>::quiet_NaN();
    }
  }
  return json_value<double>(value, "as_float");
}

/// What is wrong with a program, with how often it occurs.
class Problems {
 public:
  void add(const std::string& what) { ++counts_[shown(what, 120)]; }
  void operator_unknown(const std::string& name) { ++operators_[shown(name, 120)]; }

  void throw_if_any(const std::string& path) const {
    std::size_t calls = 0;
    std::vector<std::string> lines;
    for (const auto& [name, count] : operators_) {
      lines.push_back(fmt::format("operator {}: {}", name, count));
      calls += static_cast<std::size_t>(count);
    }
    for (const auto& [what, count] : counts_) {
      lines.push_back(fmt::format("{}: {}", what, count));
    }
    if (lines.empty()) {
      return;
    }
    std::string details = "not known, with how often it occurs:";
    for (const std::string& line : lines) {
      details += "\n  " + line;
    }
    fail_input({.thing = path,
                .wrong = fmt::format("the program has {} operators in {} calls that are not known, "
                                     "and {} other forms",
                                     operators_.size(), calls, counts_.size()),
                .advice = "export it with run_decompositions(), in the form of "
                          "docs/exported-programs.md",
                .details = std::move(details)});
  }

 private:
  std::map<std::string, int> operators_;
  std::map<std::string, int> counts_;
};

/// A default in an operator's row.
Argument default_of(std::string_view text) {
  if (text == "none") {
    return {};
  }
  if (text == "true" || text == "false") {
    return {Kind::boolean, {{-1, text == "true" ? 1 : 0, 0}}};
  }
  if (text.front() == '\'') {
    return {Kind::text, {}, std::string(text.substr(1, text.size() - 2))};
  }
  if (text == "[]") {
    return {Kind::integers};
  }
  const bool list = text.front() == '[';
  const std::string number(list ? text.substr(1, text.size() - 2) : text);
  if (number.find_first_of(".e") != std::string::npos) {
    return {Kind::real, {{-1, 0, std::stod(number)}}};
  }
  return {list ? Kind::integers : Kind::integer, {{-1, std::stoll(number), 0}}};
}

/// The arguments of a row.
struct RowArgument {
  std::string_view name;
  bool ignored = false;
  std::optional<std::string_view> otherwise;
};
std::vector<RowArgument> arguments_of(const AtenOperator& row) {
  std::vector<RowArgument> all;
  std::string_view rest = row.arguments;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    RowArgument argument;
    argument.ignored = one.front() == '-';
    one.remove_prefix(argument.ignored ? 1 : 0);
    const std::size_t equals = one.find('=');
    argument.name = one.substr(0, equals);
    if (equals != std::string_view::npos) {
      argument.otherwise = one.substr(equals + 1);
    }
    all.push_back(argument);
  }
  return all;
}

class GraphReader {
 public:
  GraphReader(ExportedGraph& graph, Problems& problems, const json& program)
      : graph_(graph),
        problems_(problems),
        module_(json_member(program, "graph_module")),
        source_(json_member(module_, "graph")) {}

  void read() {
    read_inputs();
    for (const json& node : list(source_, "nodes")) {
      read_node(node);
    }
    read_outputs();
    finish_modules();
    check_updates();
    check_uses();
  }

 private:
  static const json& list(const json& object, const char* name) {
    const json& found = json_member(object, name);
    if (!found.is_array()) {
      throw JsonProblem(fmt::format("'{}' is not a list", name));
    }
    return found;
  }

  // Values

  int define(const std::string& name, ValueKind kind) {
    const auto [found, is_new] = places_.emplace(name, static_cast<int>(graph_.values.size()));
    if (!is_new) {
      throw JsonProblem(fmt::format("the value '{}' is computed twice", shown(name, 80)));
    }
    GraphValue value{.name = name, .kind = kind, .dtype = DType::f32, .shape = {}};
    if (kind == ValueKind::tensor) {
      describe(value);
    }
    graph_.values.push_back(std::move(value));
    return found->second;
  }

  void describe(GraphValue& value) {
    const json& meta = json_member(json_member(source_, "tensor_values"), value.name.c_str());
    const auto number = json_member<std::int64_t>(meta, "dtype");
    const std::optional<DType> dtype = exported_dtype(number);
    if (!dtype) {
      problems_.add(fmt::format("a tensor of the type {} of PyTorch's schema", number));
    }
    value.dtype = dtype.value_or(DType::f32);
    value.requires_grad = json_member<bool>(meta, "requires_grad");
    for (const json& extent : list(meta, "sizes")) {
      const Choice size = choice_of(extent);
      const bool is_number = size.name == "as_int";
      value.shape.push_back(is_number ? json_value<std::int64_t>(size.value, "as_int") : -1);
      if (is_number && value.shape.back() < 0) {
        throw JsonProblem(fmt::format("a size of '{}' is negative", shown(value.name, 80)));
      }
      value.symbols.push_back(is_number ? std::string() : symbol_of(size.value));
    }
    if (value.shape.size() > static_cast<std::size_t>(max_dims)) {
      problems_.add(fmt::format("a tensor of more than {} dims", max_dims));
    }
  }

  int place(const std::string& name, bool tensor) const {
    const auto found = places_.find(name);
    if (found == places_.end()) {
      throw JsonProblem(
          fmt::format("the value '{}' is used before it is computed", shown(name, 80)));
    }
    const bool is_tensor =
        graph_.values[static_cast<std::size_t>(found->second)].kind == ValueKind::tensor;
    if (is_tensor != tensor) {
      throw JsonProblem(fmt::format("the value '{}' is {}", shown(name, 80),
                                    is_tensor ? "a tensor where a number is expected"
                                              : "a number where a tensor is expected"));
    }
    return found->second;
  }
  ArgumentItem tensor_item(const json& argument) const {
    return {place(json_member<std::string>(argument, "name"), true)};
  }
  /// A number of the program, or a value: {"as_name": ...} or a constant.
  ArgumentItem number_item(const json& argument) const {
    const Choice choice = choice_of(argument);
    if (choice.name == "as_name") {
      return {place(json_value<std::string>(choice.value, "as_name"), false)};
    }
    if (choice.name == "as_bool") {
      return {-1, json_value<bool>(choice.value, "as_bool") ? 1 : 0, 0};
    }
    if (choice.name == "as_float") {
      return {-1, 0, real_of(choice.value)};
    }
    return {-1, json_value<std::int64_t>(choice.value, "as_int"), 0};
  }

  // Arguments

  template <class F>
  static Argument list_argument(Kind kind, const json& values, F item) {
    if (!values.is_array()) {
      throw JsonProblem("an argument is not a list");
    }
    Argument argument{kind};
    for (const json& value : values) {
      argument.items.push_back(item(value));
    }
    return argument;
  }

  Argument argument_of(const json& object, const std::string& target) {
    const Choice choice = choice_of(object);
    const json& value = choice.value;
    const auto optional = [this](const json& entry) {
      const Choice one = choice_of(entry);
      return one.name == "as_none" ? ArgumentItem{} : tensor_item(one.value);
    };
    if (choice.name == "as_none") {
      return {};
    }
    if (choice.name == "as_tensor") {
      return {Kind::tensor, {tensor_item(value)}};
    }
    if (choice.name == "as_optional_tensor") {
      const ArgumentItem item = optional(value);
      return item.value < 0 ? Argument{} : Argument{Kind::tensor, {item}};
    }
    if (choice.name == "as_tensors") {
      return list_argument(Kind::tensors, value,
                           [this](const json& one) { return tensor_item(one); });
    }
    if (choice.name == "as_optional_tensors") {
      return list_argument(Kind::tensors, value, optional);
    }
    if (const std::optional<Argument> number = number_argument(choice)) {
      return *number;
    }
    if (choice.name == "as_string") {
      return {Kind::text, {}, json_value<std::string>(value, "as_string")};
    }
    if (choice.name == "as_scalar_type") {
      const std::optional<DType> dtype =
          exported_dtype(json_value<std::int64_t>(value, "as_scalar_type"));
      if (!dtype) {
        problems_.add(fmt::format("{} to the type {} of PyTorch's schema", target, value.dump()));
      }
      return {Kind::dtype, {{-1, static_cast<std::int64_t>(dtype.value_or(DType::f32)), 0}}};
    }
    if (choice.name == "as_memory_format" || choice.name == "as_layout" ||
        choice.name == "as_device") {
      return {Kind::other};
    }
    problems_.add(choice.name == "as_graph"
                      ? fmt::format("control flow ({})", target)
                      : fmt::format("an argument of {} in the form {}", target, choice.name));
    return {};
  }

  /// Numbers and lists of them; none: something else.
  std::optional<Argument> number_argument(const Choice& choice) const {
    const json& value = choice.value;
    const auto symbol = [this](const json& one) { return number_item(one); };
    const auto whole = [](const json& one) {
      return ArgumentItem{-1, json_value<std::int64_t>(one, "as_ints"), 0};
    };
    const auto flag = [](const json& one) {
      return ArgumentItem{-1, json_value<bool>(one, "as_bools") ? 1 : 0, 0};
    };
    const auto real = [](const json& one) { return ArgumentItem{-1, 0, real_of(one)}; };
    const std::string& name = choice.name;
    if (name == "as_int") {
      return Argument{Kind::integer, {whole(value)}};
    }
    if (name == "as_float") {
      return Argument{Kind::real, {real(value)}};
    }
    if (name == "as_bool") {
      return Argument{Kind::boolean, {flag(value)}};
    }
    if (name == "as_sym_int" || name == "as_sym_bool" || name == "as_sym_float") {
      const Kind kind = name == "as_sym_int"    ? Kind::integer
                        : name == "as_sym_bool" ? Kind::boolean
                                                : Kind::real;
      return Argument{kind, {symbol(value)}};
    }
    if (name == "as_ints") {
      return list_argument(Kind::integers, value, whole);
    }
    if (name == "as_floats") {
      return list_argument(Kind::reals, value, real);
    }
    if (name == "as_bools") {
      return list_argument(Kind::booleans, value, flag);
    }
    if (name == "as_sym_ints") {
      return list_argument(Kind::integers, value, symbol);
    }
    if (name == "as_sym_floats") {
      return list_argument(Kind::reals, value, symbol);
    }
    return std::nullopt;
  }

  // Nodes

  void read_node(const json& source) {
    const auto full_name = json_member<std::string>(source, "target");
    constexpr std::string_view library = "torch.ops.";
    GraphNode node;
    node.target = full_name.starts_with(library) ? full_name.substr(library.size()) : full_name;
    node.operator_index = find_aten(node.target);
    if (node.operator_index < 0) {
      if (node.target.starts_with("higher_order")) {
        problems_.add(fmt::format("control flow ({})", node.target));
      } else {
        problems_.operator_unknown(node.target);
      }
    } else {
      read_arguments(node, list(source, "inputs"));
    }
    read_results(node, list(source, "outputs"));
    read_module(node, json_member(source, "metadata"));
    graph_.nodes.push_back(std::move(node));
  }

  void read_arguments(GraphNode& node, const json& given) {
    const AtenOperator& row = aten_operator(node.operator_index);
    const std::vector<RowArgument> expected = arguments_of(row);
    std::vector<std::optional<Argument>> found(expected.size());
    for (const json& entry : given) {
      const auto name = json_member<std::string>(entry, "name");
      const auto at = std::ranges::find(expected, name, &RowArgument::name);
      if (at == expected.end()) {
        problems_.add(fmt::format("an argument '{}' of {}", name, node.target));
        continue;
      }
      const Argument argument = argument_of(json_member(entry, "arg"), node.target);
      found[static_cast<std::size_t>(at - expected.begin())] = at->ignored ? Argument{} : argument;
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!found[i]) {
        if (!expected[i].otherwise && !expected[i].ignored) {
          problems_.add(fmt::format("{} without its argument '{}'", node.target, expected[i].name));
        }
        found[i] = expected[i].otherwise ? default_of(*expected[i].otherwise) : Argument{};
      }
      node.arguments.push_back(*std::move(found[i]));
    }
    if (row.unsupported != nullptr) {
      if (const std::string what = row.unsupported(node); !what.empty()) {
        problems_.add(fmt::format("{}: {}", node.target, what));
      }
    }
  }

  void read_results(GraphNode& node, const json& outputs) {
    for (const json& output : outputs) {
      const Choice choice = choice_of(output);
      if (choice.name == "as_tensor") {
        node.results.push_back(
            define(json_member<std::string>(choice.value, "name"), ValueKind::tensor));
      } else if (choice.name == "as_tensors") {
        for (const json& one : choice.value) {
          node.results.push_back(define(json_member<std::string>(one, "name"), ValueKind::tensor));
        }
      } else if (choice.name == "as_none") {
        node.results.push_back(-1);
      } else if (choice.name == "as_sym_int" || choice.name == "as_sym_bool" ||
                 choice.name == "as_sym_float") {
        const ValueKind kind = choice.name == "as_sym_int"    ? ValueKind::integer
                               : choice.name == "as_sym_bool" ? ValueKind::boolean
                                                              : ValueKind::real;
        node.results.push_back(define(json_member<std::string>(choice.value, "as_name"), kind));
      } else {
        problems_.add(fmt::format("a result of {} in the form {}", node.target, choice.name));
      }
    }
  }

  /// "key,path,class;key,path,class", from the outside to the inside. A second call of a module has
  /// a key that ends with "@1".
  void read_module(GraphNode& node, const json& metadata) {
    const auto stack = metadata.find("nn_module_stack");
    if (stack == metadata.end() || !stack->is_string()) {
      return;
    }
    std::string_view rest = stack->get_ref<const std::string&>();
    while (!rest.empty()) {
      const std::string_view one = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(one.size() + 1, rest.size()));
      const std::size_t first = one.find(',');
      const std::size_t last = one.rfind(',');
      if (first == std::string_view::npos || first == last) {
        return;
      }
      add_level(node, one.substr(0, first), one.substr(first + 1, last - first - 1),
                one.substr(last + 1));
    }
  }

  void add_level(GraphNode& node, std::string_view key, std::string_view path,
                 std::string_view kind) {
    constexpr std::string_view inserted = "_empty_nn_module_stack_from_metadata_hook";
    path = path.substr(0, path.find('@'));
    if (path.empty() || path == inserted) {
      return;  // the root, or a node that the exporter has inserted
    }
    const std::string& above =
        node.module.empty()
            ? std::string()
            : graph_.modules[static_cast<std::size_t>(node.module.back().module)].name;
    if (!above.empty() &&
        !(path.starts_with(above) && path.size() > above.size() && path[above.size()] == '.')) {
      return;  // a module that another one calls without having it
    }
    const auto [found, is_new] =
        modules_.emplace(std::string(path), static_cast<int>(graph_.modules.size()));
    if (is_new) {
      const std::size_t dot = kind.rfind('.');
      graph_.modules.push_back(
          {std::string(path),
           std::string(kind.substr(dot == std::string_view::npos ? 0 : dot + 1))});
    }
    if (node.module.size() >= static_cast<std::size_t>(most_levels) ||
        std::ranges::count(path, '.') > most_levels) {
      throw JsonProblem(fmt::format("modules are in more than {} levels", most_levels));
    }
    int call = 0;
    if (const std::size_t at = key.find('@'); at != std::string_view::npos) {
      std::from_chars(key.data() + at + 1, key.data() + key.size(), call);
    }
    node.module.push_back({found->second, call});
  }

  /// Nodes that the exporter has inserted belong to what their neighbours have in common.
  void finish_modules() {
    std::vector<ModuleCall> before;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      std::vector<ModuleCall>& module = graph_.nodes[i].module;
      if (module.empty() && i + 1 < graph_.nodes.size()) {
        const std::vector<ModuleCall>& after = graph_.nodes[i + 1].module;
        for (std::size_t d = 0; d < std::min(before.size(), after.size()) && before[d] == after[d];
             ++d) {
          module.push_back(before[d]);
        }
      }
      before = module;
    }
  }

  // Inputs and outputs

  void read_inputs() {
    for (const json& spec : list(json_member(module_, "signature"), "input_specs")) {
      const Choice choice = choice_of(spec);
      if (choice.name == "constant_input") {
        continue;  // its value is in the program
      }
      if (choice.name == "user_input") {
        const Choice argument = choice_of(json_member(choice.value, "arg"));
        if (argument.name == "as_tensor") {
          add_input(json_member<std::string>(argument.value, "name"), InputRole::user, "", true);
        } else if (argument.name != "as_none") {
          problems_.add(fmt::format("an input in the form {}", argument.name));
        }
        continue;
      }
      const auto name = [&] {
        return json_member<std::string>(json_member(choice.value, "arg"), "name");
      };
      if (choice.name == "parameter") {
        add_input(name(), InputRole::parameter,
                  json_member<std::string>(choice.value, "parameter_name"), true);
      } else if (choice.name == "buffer") {
        add_input(name(), InputRole::buffer, json_member<std::string>(choice.value, "buffer_name"),
                  json_member<bool>(choice.value, "persistent"));
      } else if (choice.name == "tensor_constant") {
        add_input(name(), InputRole::constant,
                  json_member<std::string>(choice.value, "tensor_constant_name"), false);
      } else {
        problems_.add(fmt::format("an input in the form {}", choice.name));
      }
    }
  }

  void add_input(const std::string& name, InputRole role, const std::string& target, bool saved) {
    if (role != InputRole::user &&
        (target.empty() || target.starts_with('.') || target.ends_with('.') ||
         target.find("..") != std::string::npos || std::ranges::count(target, '.') > most_levels)) {
      throw JsonProblem(fmt::format("'{}' is not the name of a parameter", shown(target, 80)));
    }
    graph_.inputs.push_back({define(name, ValueKind::tensor), role, target, saved});
  }

  void read_outputs() {
    for (const json& spec : list(json_member(module_, "signature"), "output_specs")) {
      const Choice choice = choice_of(spec);
      if (choice.name == "user_output" || choice.name == "loss_output") {
        const json& argument = json_member(choice.value, "arg");
        if (choice.name == "loss_output") {
          graph_.outputs.push_back(tensor_item(argument).value);
          continue;
        }
        const Choice output = choice_of(argument);
        if (output.name == "as_tensor") {
          graph_.outputs.push_back(tensor_item(output.value).value);
        } else if (output.name != "as_none") {
          problems_.add(fmt::format("an output in the form {}", output.name));
        }
      } else if (choice.name == "buffer_mutation") {
        graph_.updates.push_back({tensor_item(json_member(choice.value, "arg")).value,
                                  json_member<std::string>(choice.value, "buffer_name")});
      } else {
        problems_.add(choice.name == "user_input_mutation"
                          ? "an input that is changed in place"
                          : fmt::format("an output in the form {}", choice.name));
      }
    }
    if (graph_.outputs.empty()) {
      problems_.add("no output that is a tensor");
    }
  }

  /// Buffers that are changed exist, and stay what they are.
  void check_updates() const {
    std::map<std::string, const GraphValue*> buffers;
    for (const GraphInput& input : graph_.inputs) {
      if (input.role == InputRole::buffer) {
        buffers.emplace(input.target, &graph_.values[static_cast<std::size_t>(input.value)]);
      }
    }
    for (const BufferUpdate& update : graph_.updates) {
      const auto found = buffers.find(update.buffer);
      const GraphValue& value = graph_.values[static_cast<std::size_t>(update.value)];
      if (found == buffers.end() || found->second->dtype != value.dtype ||
          found->second->shape != value.shape) {
        throw JsonProblem(
            fmt::format("'{}', which the program changes, is not a buffer of this "
                        "type and shape",
                        shown(update.buffer, 80)));
      }
    }
  }

  /// Results that are not computed must not be used.
  void check_uses() {
    std::set<int> used(graph_.outputs.begin(), graph_.outputs.end());
    for (const BufferUpdate& update : graph_.updates) {
      used.insert(update.value);
    }
    for (const GraphNode& node : graph_.nodes) {
      for (const Argument& argument : node.arguments) {
        for (const ArgumentItem& item : argument.items) {
          used.insert(item.value);
        }
      }
    }
    for (GraphNode& node : graph_.nodes) {
      const int computed = node.operator_index < 0 ? 0 : aten_operator(node.operator_index).results;
      for (std::size_t i = 0; i < node.results.size(); ++i) {
        if (!used.contains(node.results[i])) {
          node.results[i] = -1;
        } else if (computed > 0 && i >= static_cast<std::size_t>(computed)) {
          problems_.add(fmt::format("a use of result {} of {}", i, node.target));
        }
      }
    }
  }

  ExportedGraph& graph_;
  Problems& problems_;
  const json& module_;
  const json& source_;
  std::map<std::string, int> places_;
  std::map<std::string, int> modules_;
};

void check_version(const std::string& path, const json& program) {
  const json& version = json_member(program, "schema_version");
  const auto major = json_member<std::int64_t>(version, "major");
  const auto minor = json_member<std::int64_t>(version, "minor");
  if (major == schema_major) {
    return;
  }
  fail_input({.thing = path,
              .wrong = fmt::format("the program has another version of torch.export's schema"),
              .expected = fmt::format("{}", schema_major),
              .got = fmt::format("{}.{}", major, minor),
              .advice = major > schema_major ? "export it with an older PyTorch (2.15 has 8.20)"
                                             : std::string(advice)});
}

/// Parameters and buffers as the file has them.
void check_tensors(const ExportedGraph& graph, const TensorSource& file) {
  for (const GraphInput& input : graph.inputs) {
    if (input.role == InputRole::user) {
      continue;
    }
    const GraphValue& value = graph.values[static_cast<std::size_t>(input.value)];
    const TensorInfo& info = file.info(input.target);
    if (info.dtype != value.dtype || !(info.shape == Dims(value.shape))) {
      fail_input(
          {.thing = graph.path,
           .wrong =
               fmt::format("'{}' is not the tensor that the program uses", shown(input.target, 80)),
           .expected = fmt::format("{}{}", name_of(value.dtype), to_string(Dims(value.shape))),
           .got = fmt::format("{}{}", name_of(info.dtype), to_string(info.shape)),
           .advice = std::string(advice)});
    }
  }
}

}  // namespace

ExportedGraph read_exported_graph(const TensorSource& file) {
  ExportedGraph graph;
  graph.path = file.path();
  const ParsedJson meta = parse_json_object(file.meta());
  const auto found = meta.value.find("pt2");
  if (!meta.problem.empty() || found == meta.value.end()) {
    fail_input({.thing = file.path(),
                .wrong = "it is not a program of torch.export",
                .expected = "a file that torch.export.save has written",
                .advice = "name a .pt2 file"});
  }
  reading_json(
      graph.path,
      [&] {
        const json& program = json_member(*found, "program");
        check_version(graph.path, program);
        graph.torch_version = json_member<std::string>(program, "torch_version");
        graph.ranges = ranges_of(program);
        Problems problems;
        GraphReader(graph, problems, program).read();
        problems.throw_if_any(graph.path);
        const json& storages = json_member(*found, "storages");
        for (GraphInput& input : graph.inputs) {
          if (input.role != InputRole::user) {
            input.storage = json_member<std::string>(storages, input.target.c_str());
          }
        }
      },
      std::string(advice));
  check_tensors(graph, file);
  return graph;
}

}  // namespace tessera::exported
