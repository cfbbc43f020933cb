module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
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

CompiledChains::CompiledChains(const Program& program, Device device) {
  const bool on_host = device == cpu;
  const Shadow shadow = shadow_of(program);
  at_ = ByPlace<ChainIndex>(shadow.partners.size());
  chains_ = ByChain<Chain>(chains_of(program, shadow, on_host));
  if (chains_.empty()) {
    missing_ = on_host ? find_compiler().missing : std::string();
    return;
  }
  for (const Chain& chain : chains_) {
    ReadyCall& ready = ready_[ready_.add({})];
    ready.from.resize(chain.inputs.size());
    ready.to.resize(chain.outputs.size());
    for (const Chain::ChainCall& call : chain.calls) {
      const Instruction& i = *call.instruction;
      if (!i.bindings.empty()) {
        ready.bound.emplace_back(ready.numbers.size(), &i);
      }
      std::ranges::copy(numbers_of(i.attributes), std::back_inserter(ready.numbers));
    }
  }
  if (!(on_host ? compile_for_host(program) : compile_for_device(program, device))) {
    chains_.clear();
    return;
  }
  for (const ChainIndex k : chains_.keys()) {
    for (const Chain::ChainCall& call : chains_[k].calls) {
      at_[call.place] = k;
    }
  }
}

bool CompiledChains::compile_for_host(const Program& program) {
  const ChainCode code = code_of(program, chains());
  GeneratedLibrary generated = generated_library(code.source);
  if (!generated.library) {
    missing_ = std::move(generated.missing);
    return false;
  }
  library_ = std::move(generated.library);
  std::map<std::string, std::size_t> numbers;
  for (const ChainIndex k : chains_.keys()) {
    ReadyCall& ready = ready_[k];
    const std::string& name = code.names[static_cast<std::size_t>(k.number)];
    ready.number = numbers.try_emplace(name, numbers.size()).first->second;
    ready.function = reinterpret_cast<ChainFunction>(library_->find(name));
    if (chains_[k].workspace() > 0) {
      ready.end = reinterpret_cast<ChainEnd>(library_->find(name + "_end"));
    }
  }
  return true;
}

bool CompiledChains::compile_for_device(const Program& program, Device device) {
  const ChainLoops all = loops_of(program, chains());
  CompiledLoops compiled = compile_loops(device, all.loops);
  if (compiled.loops == nullptr) {
    missing_ = std::move(compiled.missing);
    return false;
  }
  loops_ = std::move(compiled.loops);
  for (const ChainIndex k : chains_.keys()) {
    ready_[k].number = all.numbers[static_cast<std::size_t>(k.number)];
  }
  return true;
}

CompiledKernels CompiledChains::summary() const {
  std::set<std::size_t> functions;
  for (const ChainIndex k : chains_.keys()) {
    functions.insert(ready_[k].number);
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
  ReadyCall& ready = ready_[chain];
  for (const auto& [at, instruction] : ready.bound) {
    std::ranges::copy(numbers_of(bound(*instruction)),
                      ready.numbers.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (loops_ != nullptr) {
    loops_->run(
        ready.number,
        {.rows = one.rows, .columns = one.columns, .in = in, .out = out, .numbers = ready.numbers});
  } else {
    run_on_host(one, ready, in, out, workspace);
  }
  auto to = out.begin();
  for (const Chain::Output& output : one.outputs) {
    if (output.is_written) {
      to->storage().bump_version();
    }
    ++to;
  }
}

void CompiledChains::run_on_host(const Chain& one, ReadyCall& ready, std::span<const Tensor> in,
                                 std::span<Tensor> out, std::span<std::byte> workspace) {
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
}

}  // namespace tessera::graph
