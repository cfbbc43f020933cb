module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.record;
import :chains;
import :compiled_chains;
import :compiler;
import :shadow;

namespace tessera::graph {
namespace {

/// Fewer elements are not divided among threads.
constexpr std::int64_t grain = 1 << 14;

}  // namespace

CompiledChains::CompiledChains(const Program& program) {
  const Shadow shadow = shadow_of(program);
  at_.assign(index(shadow.places), -1);
  chains_ = chains_of(program, shadow);
  if (chains_.empty()) {
    missing_ = find_compiler().missing;
    return;
  }
  const ChainCode code = code_of(program, chains_);
  GeneratedLibrary generated = generated_library(code.source);
  if (!generated.library) {
    missing_ = std::move(generated.missing);
    chains_.clear();
    return;
  }
  library_ = std::move(generated.library);
  for (std::size_t k = 0; k < chains_.size(); ++k) {
    functions_.push_back(reinterpret_cast<ChainFunction>(library_->find(code.names[k])));
    std::vector<double>& numbers = numbers_.emplace_back();
    for (const Chain::ChainCall& call : chains_[k].calls) {
      at_[index(call.place)] = static_cast<int>(k);
      std::ranges::copy(numbers_of(call.instruction->attributes), std::back_inserter(numbers));
    }
  }
}

CompiledKernels CompiledChains::summary() const {
  CompiledKernels all{
      .kernels = static_cast<int>(std::set(functions_.begin(), functions_.end()).size()),
      .chains = static_cast<int>(chains_.size()),
      .missing = missing_};
  for (const Chain& chain : chains_) {
    all.replaced += static_cast<int>(chain.calls.size());
  }
  return all;
}

void CompiledChains::run(int chain, std::span<const Tensor> in, std::span<Tensor> out,
                         const Bound& bound) {
  const Chain& one = chains_[index(chain)];
  std::vector<double>& numbers = numbers_[index(chain)];
  std::size_t at = 0;
  for (const Chain::ChainCall& call : one.calls) {
    const Instruction& i = *call.instruction;
    if (!i.bindings.empty()) {
      std::ranges::copy(numbers_of(bound(i)), numbers.begin() + static_cast<std::ptrdiff_t>(at));
    }
    at += i.attributes.dynamic().size();
  }
  InlineVector<const void*, 8> from;
  for (const Tensor& x : in) {
    from.push_back(x.raw_data());
  }
  InlineVector<void*, 4> to;
  for (const Tensor& x : out) {
    to.push_back(x.raw_data());
  }
  const ChainFunction function = functions_[index(chain)];
  const bool by_rows = one.rows > 1;
  const std::int64_t each = by_rows ? std::max<std::int64_t>(1, grain / one.columns) : grain;
  ops::in_pieces(
      by_rows ? one.rows : one.columns, each, [&](std::int64_t first, std::int64_t last) {
        const ChainRange range = by_rows ? ChainRange{first, last, 0, one.columns, one.columns}
                                         : ChainRange{0, 1, first, last, one.columns};
        function(range, from.begin(), to.begin(), numbers.data());
      });
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (one.outputs[k].is_written) {
      out[k].storage().bump_version();
    }
  }
}

}  // namespace tessera::graph
