// The places of Offload.
#pragma once

// Included after the imports of tessera's modules.

namespace offload {

/// Memory of the host that is not the device's. Tensors outlive the place.
std::shared_ptr<tessera::MemoryPlace> host_memory();

/// A file in the folder that has no name and goes away with the process, mapped into memory. The
/// kernel reads what is requested ahead, and writes what was put away, while the rank computes.
/// Tensors outlive the place. Errors (run), when it is used: the folder cannot be written; the file
/// system is full.
std::shared_ptr<tessera::MemoryPlace> file(std::string folder);

}  // namespace offload
