module;
#include <cstddef>
#include <memory>
#include <utility>
module tessera.tensor;

import tessera.base;

namespace tessera {

Counted<Storage> Storage::allocate(std::size_t bytes) {
  auto* storage = new Storage;
  storage->bytes_ = bytes;
  storage->owned_ = true;
  storage->category_ = current_memory_category();
  storage->restore_memory();
  return Counted<Storage>(storage);
}

Counted<Storage> Storage::borrow(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) {
  auto* storage = new Storage;
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->keep_alive_ = std::move(keep_alive);
  return Counted<Storage>(storage);
}

Counted<Storage> Storage::none() { return Counted<Storage>(new Storage); }

Storage::~Storage() {
  if (owned_) {
    free_bytes(data_, bytes_, category_);
  }
}

void Storage::destroy() { delete this; }

void Storage::release_memory() {
  require(owned_, "storage: borrowed memory cannot be released; its owner frees it");
  free_bytes(data_, bytes_, category_);
  data_ = nullptr;
}

void Storage::restore_memory() {
  require(owned_, "storage: borrowed memory cannot be restored; its owner provides it");
  if (data_ == nullptr && bytes_ > 0) {
    data_ = allocate_bytes(bytes_, category_);
  }
}

}  // namespace tessera
