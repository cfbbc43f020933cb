module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
module tessera.tensor;

import tessera.base;

namespace tessera {

PendingWork::~PendingWork() = default;

void Storage::set_pending(std::unique_ptr<PendingWork> work) { pending_ = std::move(work); }
std::unique_ptr<PendingWork> Storage::take_pending() { return std::move(pending_); }

Counted<Storage> Storage::allocate(std::size_t bytes) {
  Counted<Storage> storage(new Storage);  // goes away where there is no memory
  storage->bytes_ = bytes;
  storage->owned_ = true;
  storage->category_ = current_memory_category();
  if (bytes > 0) {
    storage->data_ = allocate_bytes(bytes, storage->category_);
  }
  return storage;
}

void Storage::allocate_device_memory() {
  if (bytes_ > 0) {
    auto memory = std::make_shared<DeviceMemory>(
        device_, bytes_, MemoryOwner{.category = category_, .module = current_module()});
    data_ = memory->data();
    keep_alive_ = std::move(memory);
  }
}

Counted<Storage> Storage::allocate_on(Device device, std::size_t bytes) {
  Counted<Storage> storage(new Storage);
  storage->bytes_ = bytes;
  storage->on_device_ = true;
  storage->device_ = device;
  storage->category_ = current_memory_category();
  storage->allocate_device_memory();
  return storage;
}

Counted<Storage> Storage::borrow(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) {
  auto* storage = new Storage;
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->keep_alive_ = std::move(keep_alive);
  return Counted<Storage>(storage);
}

Counted<Storage> Storage::none(std::size_t planned) {
  auto* storage = new Storage;
  storage->meta_ = true;
  storage->device_ = meta;
  if (planned > 0 && memory_planned()) {
    storage->category_ = current_memory_category();
    storage->planned_ = occupied_bytes(planned);
    storage->book_planned(storage->planned_);
  }
  return Counted<Storage>(storage);
}

Storage::~Storage() {
  pending_.reset();  // it may still write the memory
  if (owned_) {
    free_bytes(data_, bytes_, category_);
  } else if (booked_ > 0) {
    book_planned(0);
  }
}

void Storage::destroy() { delete this; }

std::uint64_t Storage::new_pass() {
  static std::uint64_t passes = 0;
  return __atomic_add_fetch(&passes, 1, __ATOMIC_RELAXED);
}

/// Brings the booking of a storage without memory to `bytes`. Outside of a PlannedMemoryScope, for
/// example on the thread that destroys what a trial has left, the account is another one.
void Storage::book_planned(std::int64_t bytes) noexcept {
  if (memory_planned()) {
    account_memory(category_, bytes - booked_);
  }
  booked_ = bytes;
}

namespace {

/// Releases or restores memory; a mode may see it.
template <class F>
void change_memory(ActionKind kind, Storage& storage, const F& change) {
  if (!modes_installed()) [[likely]] {
    change();
    return;
  }
  Action action{.kind = kind,
                .name = "storage",
                .bytes = static_cast<std::int64_t>(storage.bytes()),
                .storage = &storage};
  perform(action, [&change] { change(); }, ModeLevel::below_distribution);
}

}  // namespace

void Storage::release_memory() {
  change_memory(ActionKind::release, *this, [this] {
    if (meta_) {
      book_planned(0);
      return;
    }
    if (on_device_) {
      keep_alive_.reset();
      data_ = nullptr;
      return;
    }
    require(owned_, "storage: borrowed memory cannot be released; its owner frees it");
    free_bytes(data_, bytes_, category_);
    data_ = nullptr;
  });
}

void Storage::restore_memory() {
  change_memory(ActionKind::restore, *this, [this] {
    if (meta_) {
      book_planned(planned_);
      return;
    }
    if (on_device_) {
      if (data_ == nullptr) {
        allocate_device_memory();
      }
      return;
    }
    require(owned_, "storage: borrowed memory cannot be restored; its owner provides it");
    if (data_ == nullptr && bytes_ > 0) {
      data_ = allocate_bytes(bytes_, category_);
    }
  });
}

void Storage::move_to(MemoryCategory category) {
  if (category == category_) {
    return;
  }
  if (on_device_) {
    if (keep_alive_) {
      static_cast<DeviceMemory*>(keep_alive_.get())->move_to(category);
    }
    category_ = category;
    return;
  }
  const std::int64_t bytes = meta_                        ? booked_
                             : owned_ && data_ != nullptr ? occupied_bytes(bytes_)
                                                          : 0;
  if (!meta_ || memory_planned()) {
    account_memory(category_, -bytes);
    account_memory(category, bytes);
  }
  category_ = category;
}

}  // namespace tessera
