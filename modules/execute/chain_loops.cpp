// The loops of chains on a device.
module;
#include <fmt/format.h>

#include <cstddef>
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

/// Without what only goes through vectors.
std::string function_of(const Element& element) {
  for (const std::string_view adapter :
       {"tessera::functions::LanesOf<", "tessera::functions::TruthOf<"}) {
    if (element.function.starts_with(adapter)) {
      return element.function.substr(adapter.size(), element.function.size() - adapter.size() - 1);
    }
  }
  return element.function;
}

std::string_view place_of(Spread spread) {
  switch (spread) {
    case Spread::all:
      return "at";
    case Spread::columns:
      return "column";
    case Spread::rows:
      return "row";
    default:
      return "0";
  }
}

/// What is read comes first: an output may be where an input is.
ElementLoops::Loop loop_of(const Program& program, const Chain& chain) {
  ElementLoops::Loop loop;
  loop.in_double = chain.in_double();
  loop.inputs = static_cast<int>(chain.inputs.size());
  loop.outputs = static_cast<int>(chain.outputs.size());
  for (const Chain::InputIndex k : chain.inputs.keys()) {
    const Chain::Input& input = chain.inputs[k];
    loop.body += fmt::format("const C i{0} = input<{1}>({0}, {2});\n", k.number,
                             type_of(program.tensors[input.tensor].dtype), place_of(input.spread));
  }
  for (const Chain::ChainCall& call : chain.calls) {
    std::string arguments;
    for (const Chain::Operand& operand : call.operands) {
      arguments +=
          fmt::format("{}{}{}", arguments.empty() ? "" : ", ", operand.value.exists() ? "v" : "i",
                      operand.value.exists() ? operand.value.number : operand.input.number);
    }
    for (std::size_t k = 0; k < call.instruction->attributes.dynamic().size(); ++k) {
      arguments += fmt::format(", number({})", loop.numbers++);
    }
    const Chain::ValueIndex made = call.results.front();
    loop.body +=
        fmt::format("const C v{} = rounded<{}>(computed<{}>({}));\n", made.number,
                    type_of(chain.values[made].dtype), function_of(call.element), arguments);
  }
  for (const Chain::OutputIndex k : chain.outputs.keys()) {
    const Chain::ValueIndex of = chain.outputs[k].value;
    loop.body += fmt::format("output<{}>({}, at, v{});\n", type_of(chain.values[of].dtype),
                             k.number, of.number);
  }
  return loop;
}

}  // namespace

ChainLoops loops_of(const Program& program, std::span<const Chain> chains) {
  ChainLoops all;
  std::set<std::string> headers;
  std::map<std::pair<std::string, bool>, std::size_t> known;
  for (const Chain& chain : chains) {
    for (const Chain::ChainCall& call : chain.calls) {
      if (!call.element.header.empty()) {
        headers.insert(std::string(call.element.header));
      }
    }
    ElementLoops::Loop loop = loop_of(program, chain);
    const auto [found, fresh] =
        known.try_emplace({loop.body, loop.in_double}, all.loops.loops.size());
    if (fresh) {
      loop.name = fmt::format("chain_{}", found->second);
      all.loops.loops.push_back(std::move(loop));
    }
    all.numbers.push_back(found->second);
  }
  all.loops.headers.assign(headers.begin(), headers.end());
  return all;
}

}  // namespace tessera::graph
