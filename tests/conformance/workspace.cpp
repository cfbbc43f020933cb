// The memory that an operator's kernel uses, compared with the workspace that it declares: by small
// calls and enlarged ones, with one thread and with several, between bytes that the kernel must not
// write and full of bytes that it must not read. Everything that is allocated meanwhile is seen. No
// operator is known here by its name.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Whether allocations of all threads are counted: the kernels' threads are among them.
std::atomic<bool> watching{false};
std::atomic<std::ptrdiff_t> held{0};  // bytes allocated and not yet freed
std::atomic<std::ptrdiff_t> most_held{0};

void count(void* memory, int sign) {
  if (watching.load(std::memory_order_relaxed) && memory != nullptr) {
    const auto bytes = sign * static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
    const std::ptrdiff_t now = held.fetch_add(bytes) + bytes;
    std::ptrdiff_t most = most_held.load();
    while (now > most && !most_held.compare_exchange_weak(most, now)) {
    }
  }
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) & ~(alignment - 1);
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  count(memory, 1);
  return memory;
}

void deallocate(void* memory) {
  count(memory, -1);
  std::free(memory);
}

constexpr std::size_t usual_alignment = alignof(std::max_align_t);

}  // namespace

// The whole program's.
void* operator new(std::size_t bytes) { return allocate(bytes, usual_alignment); }
void* operator new[](std::size_t bytes) { return allocate(bytes, usual_alignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
// A sanitizer's own would not call the ones above.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, usual_alignment);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, usual_alignment);
}
void operator delete(void* memory) noexcept { deallocate(memory); }
void operator delete[](void* memory) noexcept { deallocate(memory); }
void operator delete(void* memory, std::size_t) noexcept { deallocate(memory); }
void operator delete[](void* memory, std::size_t) noexcept { deallocate(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { deallocate(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { deallocate(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { deallocate(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { deallocate(memory); }

namespace {

using Bytes = std::vector<std::byte>;

/// A dense copy of a tensor's values.
Bytes values_of(const Tensor& x) {
  const Tensor whole = operands::contiguous(x);
  const auto* const from = static_cast<const std::byte*>(whole.raw_data());
  return {from, from + static_cast<std::size_t>(whole.numel()) * size_of(whole.dtype())};
}

/// x with each dim of more than one element repeated: element i is element i mod the extent.
Tensor tiled(const Tensor& x, std::int64_t times) {
  const NoGrad constant;
  Tensor result = ops::clone(detached(x));
  for (int d = 0; d < x.dims(); ++d) {
    if (x.shape()[d] > 1) {
      const std::vector<Tensor> copies(static_cast<std::size_t>(times), result);
      result = ops::cat(copies, d);
    }
  }
  return result;
}

std::vector<Tensor> fresh(const CallSample& sample, std::int64_t times) {
  std::vector<Tensor> in;
  for (const Tensor& x : sample.inputs) {
    in.push_back(x ? tiled(x, times) : x);
  }
  return in;
}

/// How often the sample's dims can be repeated so that no operand has more than `most` elements; 1:
/// not at all.
std::int64_t enlargement(const CallSample& sample, double most) {
  double times = most;
  for (const Tensor& x : sample.inputs) {
    if (!x) {
      continue;
    }
    const auto repeated = std::ranges::count_if(x.shape().span(), [](auto n) { return n > 1; });
    if (repeated > 0 && x.numel() > 0) {
      times = std::min(times, std::pow(most / static_cast<double>(x.numel()),
                                       1.0 / static_cast<double>(repeated)));
    }
  }
  return times == most ? 1 : std::max<std::int64_t>(static_cast<std::int64_t>(times), 1);
}

/// What one call of a kernel did.
struct Use {
  std::vector<Bytes> results;
  std::size_t declared = 0;
  std::size_t touched = 0;    // bytes of the workspace that hold something else now
  std::size_t unplanned = 0;  // bytes allocated besides
  bool inside = true;         // nothing around the workspace was written
};

/// Calls the kernel in a workspace of the declared size that is full of `filling`.
Use use(const CallSample& sample, const std::vector<Tensor>& operands, std::byte filling) {
  const Op& op = *sample.op;
  std::vector<Tensor> in = operands;
  std::vector<Tensor> out;
  if (op.in_place) {
    for (Tensor& x : in) {
      x = x ? ops::clone(x) : x;
    }
    out.push_back(in[0]);
  } else {
    ResultShapes shapes;
    op.infer({op, in, sample.attributes}, shapes);
    for (const ResultShape& r : shapes) {
      out.push_back(empty(r.shape, r.dtype));
    }
  }
  Use seen;
  const Call announced{op, in, sample.attributes};
  seen.declared = op.workspace == nullptr ? 0 : op.workspace(announced, out);
  constexpr std::size_t margin = 4096;
  constexpr std::size_t alignment = 64;
  Bytes memory(seen.declared + 3 * margin, filling);
  auto* start = memory.data() + margin;
  start += alignment - reinterpret_cast<std::uintptr_t>(start) % alignment;
  const Call call{op, in, sample.attributes, {start, seen.declared}};
  reset_memory_peaks();
  const std::int64_t before = memory_statistics().total;
  held = 0;
  most_held = 0;
  watching = true;
  try {
    op.cpu(call, out);
  } catch (...) {
    watching = false;
    throw;
  }
  watching = false;
  seen.unplanned = static_cast<std::size_t>(most_held + memory_statistics().total_peak - before);
  const auto changed = [&](const std::byte* begin, const std::byte* end) {
    std::size_t count = 0;
    for (; begin != end; ++begin) {
      count += *begin != filling ? 1 : 0;
    }
    return count;
  };
  std::byte* const after = start + seen.declared;
  seen.touched = changed(start, after);
  seen.inside = changed(memory.data(), start) + changed(after, memory.data() + memory.size()) == 0;
  for (const Tensor& x : op.in_place ? in : out) {
    seen.results.push_back(x ? values_of(x) : Bytes());
  }
  return seen;
}

/// Bytes that a kernel may allocate besides its workspace: handles of tensors, lists of operands.
constexpr std::size_t small = std::size_t{8} << 10;
/// The same, of three threads.
constexpr std::size_t allowed_of_threads = 3 * small;

/// A use by several threads, at least where a loop has enough to do.
/// On a busy machine a thread may get no work in one call, and allocate what it keeps in the next
/// one: what a call needs, every call allocates.
Use use_threads(const CallSample& sample, const std::vector<Tensor>& operands) {
  ops::set_threads(3);
  try {
    static_cast<void>(use(sample, operands, std::byte{0}));  // starts them
    Use seen = use(sample, operands, std::byte{0xff});
    for (int more = 0; more < 4 && seen.unplanned > allowed_of_threads; ++more) {
      seen.unplanned = std::min(seen.unplanned, use(sample, operands, std::byte{0xff}).unplanned);
    }
    ops::set_threads(1);
    return seen;
  } catch (...) {
    ops::set_threads(1);
    throw;
  }
}

/// What the calls of one operator did, in all sizes and types.
struct Seen {
  int enlarged = 0;
  std::size_t declared = 0;  // by the call with the best share
  double touched = 0;        // the best share of the declared bytes of a large call
  std::string problem;
};

/// Workspaces from this size on are compared with what is touched.
constexpr std::size_t considerable = std::size_t{16} << 10;

void compare(const CallSample& sample, std::int64_t times, Seen& seen) {
  const auto problem = [&](const std::string& text) {
    if (seen.problem.empty()) {
      seen.problem = sample.name + " repeated " + std::to_string(times) + " times: " + text;
    }
  };
  std::vector<Tensor> operands;
  std::optional<Use> first;
  try {
    operands = fresh(sample, times);
    if (!sample.op->in_place) {
      ResultShapes shapes;
      sample.op->infer({*sample.op, operands, sample.attributes}, shapes);
      for (const ResultShape& r : shapes) {
        if (r.shape.product() > (1 << 20)) {
          return;
        }
      }
    }
    first = use(sample, operands, std::byte{0});
  } catch (const Error&) {
    return;  // the arguments suit the sample's own extents only
  }
  const Use again = use(sample, operands, std::byte{0xff});
  if (!first->inside || !again.inside) {
    problem("it writes outside of its workspace");
  }
  if (again.results != first->results) {
    problem("its results depend on what its workspace held before");
  }
  if (again.unplanned > small) {
    problem("it allocates " + std::to_string(again.unplanned) + " bytes besides the " +
            std::to_string(again.declared) + " of its workspace");
  }
  const Use threads = use_threads(sample, operands);
  if (!threads.inside) {
    problem("several threads write outside of the workspace");
  }
  if (threads.results != first->results) {
    problem("several threads give other results");
  }
  if (threads.unplanned > allowed_of_threads) {
    problem("several threads allocate " + std::to_string(threads.unplanned) + " bytes");
  }
  seen.enlarged += times > 1 ? 1 : 0;
  if (again.declared >= considerable) {
    const double share = static_cast<double>(again.touched) / static_cast<double>(again.declared);
    if (share >= seen.touched) {
      seen.touched = share;
      seen.declared = again.declared;
    }
  }
}

void compare_safely(const CallSample& sample, std::int64_t times, Seen& seen) {
  try {
    compare(sample, times, seen);
  } catch (const std::exception& error) {
    seen.problem = sample.name + ": " + error.what();
  }
}

}  // namespace

TEST_CASE("kernels use the workspace that their operators declare, and no other memory") {
  std::map<const Op*, Seen> all;
  const std::vector<CallSample> samples = call_samples(4);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    // In f32 so many that reductions of all elements are computed in blocks.
    const double most = dtype == DType::f32 ? 1 << 17 : 1 << 13;
    // The samples are in f64, and of integers.
    for (const CallSample& sample : dtype == DType::f64 ? samples : in_type(samples, dtype)) {
      const Op& op = *sample.op;
      if (op.cpu == nullptr || op.communicates != Communicates::none) {
        continue;  // views, and operators whose kernel meets other ranks
      }
      Seen& seen = all[&op];
      compare_safely(sample, 1, seen);
      if (const std::int64_t times = enlargement(sample, most); times > 1) {
        compare_safely(sample, times, seen);
      }
    }
  }
  std::size_t enlarged = 0;
  std::size_t with_workspace = 0;
  for (const auto& [op, seen] : all) {
    INFO(op->schema << ": " << seen.problem);
    CHECK(seen.problem.empty());
    if (seen.declared != 0) {
      INFO("of " << seen.declared << " declared bytes it touches " << seen.touched);
      CHECK(seen.touched >= 0.4);  // counts of rows are not known when it is declared
      ++with_workspace;
    }
    enlarged += seen.enlarged > 0 ? 1 : 0;
  }
  INFO(all.size() << " operators, " << enlarged << " with enlarged operands, " << with_workspace
                  << " with a considerable workspace");
  CHECK(enlarged * 10 > all.size() * 8);
  CHECK(with_workspace > 40);
}
