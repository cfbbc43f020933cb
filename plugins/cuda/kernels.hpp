// The operators' kernels, by family. Include it after the imports of tessera.base, tessera.device
// and tessera.tensor.
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "driver.hpp"
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Kernels by the operator's name. Each family has a source here and one in the folder kernels.
using KernelTable = std::map<std::string, DeviceKernel, std::less<>>;
void add_copies(KernelTable& table);      // copies.cpp
void add_functions(KernelTable& table);   // elements.cpp: operators that do not say their function
void add_norms(KernelTable& table);       // norm.cpp
void add_reductions(KernelTable& table);  // reduce.cpp
void add_products(KernelTable& table);    // product.cpp
void add_attention(KernelTable& table);   // attention.cpp
void add_indexing(KernelTable& table);    // index.cpp
void add_losses(KernelTable& table);      // loss.cpp
void add_gates(KernelTable& table);       // swiglu.cpp
void add_sorting(KernelTable& table);     // sort.cpp
void add_selecting(KernelTable& table);   // select.cpp
void add_groups(KernelTable& table);      // grouped.cpp
void add_codes(KernelTable& table);       // codes.cpp
void add_scaled_products(KernelTable& table);  // scaled.cpp
void add_updates(KernelTable& table);          // update.cpp
void add_random(KernelTable& table);           // random.cpp
/// The kernel of an operator that says the function of its elements; null: it does not.
Kernel kernel_of_elements(const Op& op);

/// DeviceOffer::compile: loops.cpp.
CompiledLoops compile_loops(Device device, const ElementLoops& loops);

/// Queues a kernel in the current stream of the tensor's device; `memory`: that of
/// launch_with_memory.
template <class Structure>
void launch(const Tensor& on, const std::string& kernel, unsigned blocks, unsigned threads,
            const Structure& structure, unsigned memory = 0) {
  static_assert(sizeof(Structure) > 2 * sizeof(void*));  // see docs/emulator.md
  auto& driver = static_cast<CudaDriver&>(driver_of(on.device()));
  driver.launch_with_memory(current_stream(on.device()).native(), kernel, blocks, threads, memory,
                            &structure, sizeof(structure));
}

/// The arrays of an elementwise call of this shape, to which the operands broadcast; dims that all
/// arrays allow are joined.
ElementArguments elements_of(const Dims& shape, std::span<const Tensor> operands,
                             const Tensor& result);

/// Blocks of a kernel that goes through the elements of such a call.
unsigned blocks_of(const ElementArguments& a);

/// Where the part of this shape that the rank has of `whole` is in it (null: it is all). Dims that
/// lie together there are one.
PartPlaces places_of(const Dims& part, const SpecArgument& whole);

/// Raises the error of an in-place operator whose operands do not fit.
void check_in_place(const Call& call);

}  // namespace tessera::cuda
