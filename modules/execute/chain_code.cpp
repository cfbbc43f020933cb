// The C++ of chains.
module;
#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :chains;

namespace tessera::graph {
namespace {

std::string_view type_of(DType dtype) { return facts_of(dtype).element; }

/// Where a piece of a value or an input is: `at` of elements, `row` of what each row has once.
std::string loaded(std::string_view pointer, Spread spread, std::string_view at,
                   std::string_view row) {
  switch (spread) {
    case Spread::all:
      return fmt::format("get(whole, {}, {}, place.count)", pointer, at);
    case Spread::columns:
      return fmt::format("get(whole, {}, place.column, place.count)", pointer);
    case Spread::rows:
      return fmt::format("repeated({}, {})", pointer, row);
    default:
      return fmt::format("repeated({}, 0)", pointer);
  }
}

/// Writes the functions of a chain. Calls of one phase are one loop over a row's vectors; a value
/// that another phase reads, or that an operator of rows makes, is where the output is, or in an
/// array of one row.
class Writer {
 public:
  Writer(const Program& program, const Chain& chain)
      : program_(program),
        chain_(chain),
        output_of_(chain.values.size()),
        in_row_(chain.values.size(), false) {
    for (const Chain::OutputIndex k : chain.outputs.keys()) {
      output_of_[chain.outputs[k].value] = k;
    }
    for (const Chain::ChainCall& call : chain.calls) {
      first_number_.push_back(numbers_);
      numbers_ += call.instruction->attributes.dynamic().size();
      for (const Chain::ValueIndex result : call.results) {
        in_row_[result] = in_row_[result] || call.element.of_rows;
      }
      for (const Chain::Operand& operand : call.operands) {
        if (operand.value.exists() && value(operand.value).phase < call.phase) {
          in_row_[operand.value] = true;
        }
      }
    }
  }

  std::string body() {
    declare();
    for (int phase = 0; phase < chain_.phases(); ++phase) {
      std::vector<std::size_t> calls;
      for (std::size_t k = 0; k < chain_.calls.size(); ++k) {
        if (chain_.calls[k].phase == phase) {
          calls.push_back(k);
        }
      }
      if (chain_.calls[calls.front()].element.of_rows) {
        add_row(calls.front());
      } else {
        add_loop(calls, phase);
      }
    }
    return text_ + (chain_.has_rows() ? "  }\n" : "");
  }

  /// Name of the function that completes sums; "": there are none.
  std::string end() const {
    std::string text;
    int sum = 0;
    for (const Chain::Output& output : chain_.outputs) {
      if (value(output.value).spread == Spread::sums) {
        text += fmt::format(
            "  each_vector<{0}>(ElementRange{{0, 1, 0, {1}, {1}}}, [&](auto whole, const "
            "ElementPlace& place) __attribute__((always_inline)) {{\n"
            "    simd::Vector<{0}> total = {{}};\n"
            "    for (std::int64_t block = 0; block < blocks; ++block)\n"
            "      total += get(whole, static_cast<const {0}*>(sums[{2}]) + block * {1}, "
            "place.column, place.count);\n"
            "    put(whole, static_cast<{3}*>(out[{2}]), place, total);\n  }});\n",
            computed(), chain_.columns, sum, type(output.value));
        ++sum;
      }
    }
    return text;
  }

 private:
  const Chain::Value& value(Chain::ValueIndex one) const { return chain_.values[one]; }
  std::string_view type(Chain::ValueIndex one) const { return type_of(value(one).dtype); }
  std::string_view computed() const { return chain_.in_double() ? "double" : "float"; }

  void declare() {
    text_ = fmt::format("  using V = simd::Vector<{}>;\n", computed());
    for (const Chain::InputIndex k : chain_.inputs.keys()) {
      const DType dtype = program_.tensors[chain_.inputs[k].tensor].dtype;
      text_ += fmt::format("  const auto* const x{0} = static_cast<const {1}*>(in[{0}]);\n",
                           k.number, type_of(dtype));
    }
    for (const Chain::OutputIndex k : chain_.outputs.keys()) {
      const Chain::ValueIndex of = chain_.outputs[k].value;
      text_ += fmt::format("  auto* const y{0} = static_cast<{1}*>(out[{0}]);\n", k.number,
                           value(of).spread == Spread::sums ? computed() : type(of));
    }
    for (std::size_t k = 0; k < numbers_; ++k) {
      text_ += fmt::format("  const V n{0} = simd::splat<V>(numbers[{0}]);\n", k);
    }
    if (!chain_.has_rows()) {
      return;
    }
    text_ += fmt::format("  constexpr std::int64_t n = {};\n  alignas(64) {} scratch[n];\n",
                         chain_.columns, computed());
    for (const Chain::ValueIndex k : chain_.values.keys()) {
      if (in_row_[k] && !output_of_[k].exists()) {
        text_ += fmt::format("  alignas(64) {} t{}[{}];\n", type(k), k.number,
                             chain_.values[k].spread == Spread::rows ? "1" : "n");
      }
    }
    text_ +=
        "  for (std::int64_t row = range.first_row; row < range.last_row; ++row) {\n"
        "  const ElementRange columns{row, row + 1, 0, n, n};\n";
    for (const Chain::OutputIndex k : chain_.outputs.keys()) {
      if (value(chain_.outputs[k].value).spread == Spread::sums) {
        text_ += fmt::format(
            "  auto* const s{0} = y{0} + row / {1} * n;\n"
            "  if (row % {1} == 0) for (std::int64_t i = 0; i < n; ++i) s{0}[i] = 0;\n",
            k.number, Chain::row_block);
      }
    }
  }

  /// A row of an input or of a value.
  static std::string row_of(std::string_view array, int k, Spread spread) {
    return fmt::format("{}{}{}", array, k,
                       spread == Spread::all    ? " + row * n"
                       : spread == Spread::rows ? " + row"
                                                : "");
  }
  std::string row_of_value(Chain::ValueIndex one) const {
    const Chain::OutputIndex output = output_of_[one];
    if (!output.exists()) {
      return fmt::format("t{}", one.number);
    }
    const Spread spread = value(one).spread;
    return row_of(spread == Spread::sums ? "s" : "y", output.number, spread);
  }

  /// "n, operand..., number..., result..." of an operator of rows.
  void add_row(std::size_t at) {
    const Chain::ChainCall& call = chain_.calls[at];
    std::string arguments = "n";
    for (const Chain::Operand& operand : call.operands) {
      const DType first = program_.tensors[call.instruction->in[0]].dtype;
      arguments += fmt::format(
          ", {}", operand.value.exists() ? row_of_value(operand.value)
                  : operand.input.exists()
                      ? row_of("x", operand.input.number, chain_.inputs[operand.input].spread)
                      : fmt::format("static_cast<const {}*>(nullptr)", type_of(first)));
    }
    for (std::size_t k = 0; k < call.instruction->attributes.dynamic().size(); ++k) {
      arguments += fmt::format(", numbers[{}]", first_number_[at] + k);
    }
    for (const Chain::ValueIndex result : call.results) {
      arguments += ", " + row_of_value(result);
    }
    text_ += fmt::format("  {}::row({}{});\n", call.element.function, arguments,
                         call.element.scratch ? ", scratch" : "");
  }

  void add_loop(const std::vector<std::size_t>& calls, int phase) {
    text_ += fmt::format(
        "  each_vector<{}>({}, [&](auto whole, const ElementPlace& place) "
        "__attribute__((always_inline)) {{\n",
        computed(), chain_.has_rows() ? "columns" : "range");
    std::set<std::string> names;
    for (const std::size_t k : calls) {
      for (const Chain::Operand& operand : chain_.calls[k].operands) {
        const std::string name = name_of(operand);
        const bool is_here = operand.value.exists() && value(operand.value).phase == phase;
        if (!is_here && names.insert(name).second) {
          text_ += fmt::format("    const V {} = {};\n", name, read(operand));
        }
      }
    }
    for (const std::size_t k : calls) {
      add_element(k);
    }
    for (const std::size_t k : calls) {
      const Chain::ValueIndex made = chain_.calls[k].results.front();
      if (const Chain::OutputIndex output = output_of_[made]; output.exists()) {
        text_ += fmt::format("    put(whole, y{}, place, v{});\n", output.number, made.number);
      } else if (in_row_[made]) {
        text_ += fmt::format(
            "    put(whole, t{0}, ElementPlace{{place.column, place.row, place.column, "
            "place.count}}, v{0});\n",
            made.number);
      }
    }
    text_ += "  });\n";
  }

  static std::string name_of(const Chain::Operand& operand) {
    return operand.value.exists() ? fmt::format("v{}", operand.value.number)
                                  : fmt::format("i{}", operand.input.number);
  }

  std::string read(const Chain::Operand& operand) const {
    if (!operand.value.exists()) {
      return loaded(fmt::format("x{}", operand.input.number), chain_.inputs[operand.input].spread,
                    "place.at", "place.row");
    }
    const Chain::OutputIndex output = output_of_[operand.value];
    const Spread spread = value(operand.value).spread;
    return output.exists()
               ? loaded(fmt::format("y{}", output.number), spread, "place.at", "place.row")
               : loaded(fmt::format("t{}", operand.value.number), spread, "place.column", "0");
  }

  void add_element(std::size_t at) {
    const Chain::ChainCall& call = chain_.calls[at];
    std::string arguments;
    for (const Chain::Operand& operand : call.operands) {
      arguments += (arguments.empty() ? "" : ", ") + name_of(operand);
    }
    for (std::size_t k = 0; k < call.instruction->attributes.dynamic().size(); ++k) {
      arguments += fmt::format(", n{}", first_number_[at] + k);
    }
    text_ +=
        fmt::format("    const V v{} = rounded<{}>({}::value({}));\n", call.results.front().number,
                    type(call.results.front()), call.element.function, arguments);
  }

  const Program& program_;
  const Chain& chain_;
  Table<Chain::ValueIndex, Chain::OutputIndex> output_of_;  // none: it is not an output
  Table<Chain::ValueIndex, bool> in_row_;  // it is in memory while its row is computed
  std::vector<std::size_t> first_number_;  // by call
  std::size_t numbers_ = 0;
  std::string text_;
};

}  // namespace

ChainCode code_of(const Program& program, std::span<const Chain> chains) {
  ChainCode code;
  std::set<std::string> headers;
  std::map<std::pair<std::string, std::string>, std::string> names;
  std::string functions;
  for (const Chain& chain : chains) {
    for (const Chain::ChainCall& call : chain.calls) {
      headers.insert(std::string(call.element.header));
    }
    Writer writer(program, chain);
    std::pair<std::string, std::string> text;
    text.first = writer.body();
    text.second = writer.end();
    const auto [found, fresh] =
        names.try_emplace(std::move(text), fmt::format("chain_{}", names.size()));
    if (fresh) {
      functions += fmt::format(
          "extern \"C\" void {}(const ElementRange& range, const void* const* in, void* const* "
          "out, "
          "const double* numbers) {{\n{}}}\n",
          found->second, found->first.first);
      if (!found->first.second.empty()) {
        functions += fmt::format(
            "extern \"C\" void {}_end(std::int64_t blocks, const void* const* sums, void* const* "
            "out) {{\n{}}}\n",
            found->second, found->first.second);
      }
    }
    code.names.push_back(found->second);
  }
  code.source =
      "#include \"norm/kernels/norm_rows.hpp\"\n#include \"pointwise/kernels/elements.hpp\"\n\n";
  for (const std::string& header : headers) {
    code.source += header + "\n";
  }
  code.source +=
      "namespace tessera::kernels {\n" + functions + "}  // namespace tessera::kernels\n";
  return code;
}

std::vector<double> numbers_of(const Attributes& arguments) {
  std::vector<double> numbers;
  for (const std::int64_t word : arguments.dynamic()) {
    numbers.push_back(ArgumentType<double>::from_word(word));
  }
  return numbers;
}

}  // namespace tessera::graph
