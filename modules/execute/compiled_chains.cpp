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
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import :chains;
import :compiled_chains;
import :compiler;

namespace tessera::graph {
namespace {

/// Fewer elements are not divided among threads.
constexpr std::int64_t grain = 1 << 14;

}  // namespace

CompiledChains::CompiledChains(const Program& program) {
  const Shadow shadow = shadow_of(program);
  at_ = ByPlace<ChainIndex>(shadow.partners.size());
  chains_ = ByChain<Chain>(chains_of(program, shadow));
  if (chains_.empty()) {
    missing_ = find_compiler().missing;
    return;
  }
  const ChainCode code = code_of(program, chains());
  GeneratedLibrary generated = generated_library(code.source);
  if (!generated.library) {
    missing_ = std::move(generated.missing);
    chains_.clear();
    return;
  }
  library_ = std::move(generated.library);
  for (const Chain& chain : chains_) {
    const ChainIndex added = ready_.add({});
    Ready& ready = ready_[added];
    const std::string& name = code.names[static_cast<std::size_t>(added.number)];
    ready.function = reinterpret_cast<ChainFunction>(library_->find(name));
    ready.from.resize(chain.inputs.size());
    ready.to.resize(chain.outputs.size());
    if (chain.workspace() > 0) {
      ready.end = reinterpret_cast<ChainEnd>(library_->find(name + "_end"));
    }
    for (const Chain::ChainCall& call : chain.calls) {
      const Instruction& i = *call.instruction;
      at_[call.place] = added;
      if (!i.bindings.empty()) {
        ready.bound.emplace_back(ready.numbers.size(), &i);
      }
      std::ranges::copy(numbers_of(i.attributes), std::back_inserter(ready.numbers));
    }
  }
}

CompiledKernels CompiledChains::summary() const {
  std::set<ChainFunction> functions;
  for (const Ready& ready : ready_) {
    functions.insert(ready.function);
  }
  CompiledKernels all{.kernels = static_cast<int>(functions.size()),
                      .chains = static_cast<int>(chains_.size()),
                      .missing = missing_};
  for (const Chain& chain : chains_) {
    all.replaced += static_cast<int>(chain.calls.size());
  }
  return all;
}

void CompiledChains::run(ChainIndex chain, std::span<const Tensor> in, std::span<Tensor> out,
                         std::span<std::byte> workspace, const Bound& bound) {
  const Chain& one = chains_[chain];
  Ready& ready = ready_[chain];
  for (const auto& [at, instruction] : ready.bound) {
    std::ranges::copy(numbers_of(bound(*instruction)),
                      ready.numbers.begin() + static_cast<std::ptrdiff_t>(at));
  }
  const auto address = [](const Tensor& x) { return x.raw_data(); };
  std::ranges::transform(in, ready.from.begin(), address);
  std::ranges::transform(out, ready.to.begin(), address);
  if (ready.end != nullptr) {
    ready.sums.clear();
    ready.ends.clear();
    std::byte* next = workspace.data();
    auto to = ready.to.begin();
    for (const Chain::Output& output : one.outputs) {
      if (const std::int64_t bytes = one.bytes_of_sums(output); bytes > 0) {
        ready.sums.push_back(next);
        ready.ends.push_back(std::exchange(*to, next));
        next += bytes;
      }
      ++to;
    }
  }
  const bool by_rows = one.rows > 1 || one.has_rows();
  std::int64_t each = by_rows ? std::max<std::int64_t>(1, grain / one.columns) : grain;
  if (ready.end != nullptr) {
    each = (each + Chain::row_block - 1) / Chain::row_block * Chain::row_block;
  }
  const auto compute = [&](std::int64_t first, std::int64_t last) {
    const ChainRange range = by_rows ? ChainRange{first, last, 0, one.columns, one.columns}
                                     : ChainRange{0, 1, first, last, one.columns};
    ready.function(range, ready.from.data(), ready.to.data(), ready.numbers.data());
  };
  ops::in_pieces(by_rows ? one.rows : one.columns, each, std::ref(compute));  // no allocation
  if (ready.end != nullptr) {
    ready.end((one.rows + Chain::row_block - 1) / Chain::row_block, ready.sums.data(),
              ready.ends.data());
  }
  auto to = out.begin();
  for (const Chain::Output& output : one.outputs) {
    if (output.is_written) {
      to->storage().bump_version();
    }
    ++to;
  }
}

}  // namespace tessera::graph
