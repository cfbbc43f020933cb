#pragma once
// Who must know which storages are still there, and may hold none of them.

#include <atomic>

namespace tessera {

/// Called by the thread that ends a storage, before the storage's memory is given back.
using StorageEnd = void (*)(const void* storage) noexcept;
/// Null: nobody must know.
inline std::atomic<StorageEnd> storage_end = nullptr;

}  // namespace tessera
