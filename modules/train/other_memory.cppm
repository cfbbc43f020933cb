export module tessera.train:other_memory;

import tessera.base;
import tessera.execute;
import tessera.nn;

export namespace tessera {

/// A place of the kind that parameters may have (the style Offload's), for values of captured steps
/// (graph::ExecutionOptions::elsewhere).
std::shared_ptr<OtherMemory> other_memory(std::shared_ptr<nn::MemoryPlace> place);

}  // namespace tessera
