export module tessera.app.plan:kernel_costs;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :hardware;

// The least time of each kernel of a program on a device of given rates.

export namespace tessera::app {

/// Limits of a kernel's time.
enum class Bound : std::uint8_t {
  products_of_words,
  products,
  products_of_bytes,
  attention,
  memory
};
inline constexpr int bound_count = static_cast<int>(Bound::memory) + 1;
/// "32-bit products", "products", "8-bit products", "attention", "memory".
std::string_view name_of(Bound bound);

/// Cost of one instruction that is a kernel of the rank.
struct KernelCost {
  Bound bound = Bound::memory;  // the longer one
  double flops = 0;
  double bytes = 0;
  double seconds = 0;  // the longer one of computing and of moving bytes; without the launch
};

/// By place; nothing of what is not a kernel: views, collectives, memory.
ByPlace<std::optional<KernelCost>> kernel_costs(const Program& program, const DeviceRates& rates);

/// Tokens of the rank's rows: of each micro-batch, the ids of the largest input with rows.
std::int64_t tokens_of(const Program& program);

}  // namespace tessera::app
