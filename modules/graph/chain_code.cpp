// The C++ of chains.
module;
#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.record;
import :chains;
import :shadow;

namespace tessera::graph {
namespace {

std::string_view type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "double";
    case DType::bf16:
      return "BFloat16";
    case DType::f16:
      return "Half";
    case DType::f8e4m3:
      return "Float8E4M3";
    case DType::f8e5m2:
      return "Float8E5M2";
    default:
      return "float";
  }
}

/// Functions of one element, each once.
class Elements {
 public:
  std::string name(const std::string& element) {
    const auto [found, fresh] =
        names_.try_emplace(element, fmt::format("element_{}", names_.size()));
    if (fresh) {
      source_ += fmt::format(
          "template <class V>\n[[gnu::always_inline]] inline V {}([[maybe_unused]] V a, "
          "[[maybe_unused]] V b, [[maybe_unused]] V c, [[maybe_unused]] V p, [[maybe_unused]] V q, "
          "[[maybe_unused]] V r) {{\n  return {};\n}}\n",
          found->second, element);
    }
    return found->second;
  }
  const std::string& source() const { return source_; }

 private:
  std::map<std::string, std::string> names_;
  std::string source_;
};

std::string loaded(const Chain::Input& input, std::size_t k) {
  switch (input.spread) {
    case Spread::all:
      return fmt::format("get(whole, x{}, place.at, place.count)", k);
    case Spread::columns:
      return fmt::format("get(whole, x{}, place.column, place.count)", k);
    case Spread::rows:
      return fmt::format("repeated(x{}, place.row)", k);
    case Spread::one:
      break;
  }
  return fmt::format("repeated(x{}, 0)", k);
}

/// The body of a chain's function.
std::string body_of(const Program& program, const Chain& chain, Elements& elements) {
  const auto dtype = [&](int number) { return program.tensors[index(number)].dtype; };
  const std::string_view computed = chain.calls.front().dtype == DType::f64 ? "double" : "float";
  std::string text = fmt::format("  using V = simd::Vector<{}>;\n", computed);
  for (std::size_t k = 0; k < chain.inputs.size(); ++k) {
    text += fmt::format("  const auto* const x{0} = static_cast<const {1}*>(in[{0}]);\n", k,
                        type_of(dtype(chain.inputs[k].number)));
  }
  for (std::size_t k = 0; k < chain.outputs.size(); ++k) {
    text += fmt::format("  auto* const y{0} = static_cast<{1}*>(out[{0}]);\n", k,
                        type_of(dtype(chain.outputs[k].number)));
  }
  std::size_t numbers = 0;
  for (const Chain::ChainCall& call : chain.calls) {
    numbers += call.instruction->attributes.dynamic().size();
  }
  for (std::size_t k = 0; k < numbers; ++k) {
    text += fmt::format("  const V n{0} = simd::splat<V>(numbers[{0}]);\n", k);
  }
  text += fmt::format(
      "  each_vector<{}>(range, [&](auto whole, const ElementPlace& place) "
      "__attribute__((always_inline)) {{\n",
      computed);
  for (std::size_t k = 0; k < chain.inputs.size(); ++k) {
    text += fmt::format("    const V i{} = {};\n", k, loaded(chain.inputs[k], k));
  }
  std::size_t number = 0;
  for (std::size_t k = 0; k < chain.calls.size(); ++k) {
    const Chain::ChainCall& call = chain.calls[k];
    std::string arguments;
    for (std::size_t operand = 0; operand < 3; ++operand) {
      arguments += operand < call.operands.size()
                       ? fmt::format("{}{}, ", call.operands[operand].is_value ? "v" : "i",
                                     call.operands[operand].index)
                       : std::string("V{}, ");
    }
    const std::size_t count = call.instruction->attributes.dynamic().size();
    for (std::size_t p = 0; p < 3; ++p) {
      arguments += fmt::format("{}{}", p < count ? fmt::format("n{}", number + p) : "V{}",
                               p < 2 ? ", " : "");
    }
    number += count;
    const std::string value = fmt::format("{}<V>({})", elements.name(call.element), arguments);
    text += fmt::format("    const V v{} = rounded<{}>({});\n", k, type_of(call.dtype), value);
  }
  for (std::size_t k = 0; k < chain.outputs.size(); ++k) {
    text += fmt::format("    put(whole, y{}, place, v{});\n", k, chain.outputs[k].value);
  }
  return text + "  });\n";
}

}  // namespace

ChainCode code_of(const Program& program, std::span<const Chain> chains) {
  ChainCode code;
  Elements elements;
  std::map<std::string, std::string> names;
  std::string functions;
  for (const Chain& chain : chains) {
    std::string body = body_of(program, chain, elements);
    const auto [found, fresh] =
        names.try_emplace(std::move(body), fmt::format("chain_{}", names.size()));
    if (fresh) {
      functions += fmt::format(
          "extern \"C\" void {}(const ElementRange& range, const void* const* in, void* const* "
          "out, "
          "const double* numbers) {{\n{}}}\n",
          found->second, found->first);
    }
    code.names.push_back(found->second);
  }
  code.source = "#include \"pointwise/kernels/elements.hpp\"\n\nnamespace tessera::kernels {\n" +
                elements.source() + "\n" + functions + "}  // namespace tessera::kernels\n";
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
