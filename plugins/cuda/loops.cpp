// Loops that an executor generates, compiled by NVRTC.
#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tessera/content_hash.hpp>
#include <utility>
#include <vector>

#include "nvrtc.hpp"

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"

namespace tessera::cuda {
namespace {

std::string hash_of(std::string_view text) {
  return content_hash(std::as_bytes(std::span(text.data(), text.size()))).substr(0, 16);
}

int words_of(const ElementLoops::Loop& loop) { return loop.inputs + loop.outputs + loop.numbers; }

std::string kernel_of(const ElementLoops::Loop& loop, const std::string& name) {
  const std::string base =
      fmt::format("tessera::cuda::Loop<{}, {}, {}, {}>", loop.in_double ? "double" : "float",
                  loop.inputs, loop.outputs, words_of(loop));
  return fmt::format(
      "struct {0}_body : {1} {{\n"
      "using C = {2};\nusing {1}::Loop;\n"
      "__device__ void compute(std::int64_t at, std::int64_t row, std::int64_t column) const {{\n"
      "{3}}}\n}};\n"
      "extern \"C\" __global__ void {0}(const tessera::cuda::LoopArguments<{4}> a) {{\n"
      "tessera::cuda::each_place<{0}_body>(a);\n}}\n",
      name, base, loop.in_double ? "double" : "float", loop.body, words_of(loop));
}

/// The names of kernels begin with the source's hash, as all of a device have different ones.
std::string source_of(const ElementLoops& loops, std::vector<std::string>& names) {
  std::string source =
      "#include \"kernels/loops.hpp\"\n"
      "#include \"pointwise/functions/arithmetic.hpp\"\n"
      "#include \"pointwise/functions/comparisons.hpp\"\n"
      "#include \"pointwise/functions/losses.hpp\"\n"
      "#include \"pointwise/functions/unary.hpp\"\n"
      "#include \"pointwise/functions/with_numbers.hpp\"\n";
  std::string bodies;
  for (const std::string& header : loops.headers) {
    source += header + "\n";
  }
  for (const ElementLoops::Loop& loop : loops.loops) {
    bodies += loop.body;
  }
  const std::string hash = hash_of(source + bodies);
  source += "using namespace tessera;\nusing namespace tessera::kernels;\n";
  for (const ElementLoops::Loop& loop : loops.loops) {
    names.push_back(fmt::format("loop_{}_{}", hash, loop.name));
    source += kernel_of(loop, names.back());
  }
  return source;
}

class Loops final : public DeviceLoops {
 public:
  Loops(const ElementLoops& loops, std::vector<std::string> names) : names_(std::move(names)) {
    for (const ElementLoops::Loop& loop : loops.loops) {
      words_.push_back(words_of(loop));
    }
  }

  void run(std::size_t loop, const Run& run) override {
    constexpr std::size_t before = 3;
    std::vector<std::uint64_t> structure = {static_cast<std::uint64_t>(run.rows),
                                            static_cast<std::uint64_t>(run.columns), 0};
    for (const std::span<const Tensor> tensors : {run.in, run.out}) {
      for (const Tensor& x : tensors) {
        structure.push_back(reinterpret_cast<std::uintptr_t>(x.device_address()));
      }
    }
    for (const double number : run.numbers) {
      structure.push_back(std::bit_cast<std::uint64_t>(number));
    }
    require(structure.size() == before + static_cast<std::size_t>(words_[loop]),
            "cuda: a generated loop has other operands than it was compiled for");
    const Device device = run.out.front().device();
    auto& driver = static_cast<CudaDriver&>(driver_of(device));
    driver.launch_kernel(current_stream(device).native(), names_[loop],
                         blocks_for(run.rows * run.columns), threads_per_block, structure.data(),
                         structure.size() * sizeof(std::uint64_t));
  }

 private:
  std::vector<std::string> names_;
  std::vector<int> words_;
};

}  // namespace

CompiledLoops compile_loops(Device device, const ElementLoops& loops) {
  std::vector<std::string> names;
  const std::string source = source_of(loops, names);
  auto& driver = static_cast<CudaDriver&>(driver_of(device));
  if (std::string missing = driver.load_source(source); !missing.empty()) {
    return {.missing = std::move(missing)};
  }
  return {.loops = std::make_unique<Loops>(loops, std::move(names))};
}

}  // namespace tessera::cuda
