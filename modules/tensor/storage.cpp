module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tessera/storage_ends.hpp>
#include <utility>
module tessera.tensor;

import tessera.base;

namespace tessera {

PendingWork::~PendingWork() = default;

void Storage::set_pending(std::unique_ptr<PendingWork> work) { pending_ = std::move(work); }
std::unique_ptr<PendingWork> Storage::take_pending() { return std::move(pending_); }

namespace {

/// Smaller than this, a copy costs less than what the allocator of memory for peers does.
constexpr std::size_t least_for_peers = std::size_t{16} << 10;

}  // namespace

bool Storage::allocate_peer_memory() {
  keep_alive_ = allocate_for_peers(bytes_);
  data_ = keep_alive_.get();
  if (data_ == nullptr) {
    return false;
  }
  source_ = Source::peers;
  account_memory(category_, occupied_bytes(bytes_));
  return true;
}

IntrusivePointer<Storage> Storage::allocate(std::size_t bytes) {
  IntrusivePointer<Storage> storage(new Storage);  // goes away where there is no memory
  const MemoryRequest request = current_memory_request();
  storage->bytes_ = bytes;
  storage->category_ = request.category;
  if (request.peers_read && bytes >= least_for_peers && storage->allocate_peer_memory())
      [[unlikely]] {
    return storage;
  }
  storage->source_ = Source::allocator;
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

IntrusivePointer<Storage> Storage::allocate_on(Device device, std::size_t bytes) {
  IntrusivePointer<Storage> storage(new Storage);
  storage->bytes_ = bytes;
  storage->source_ = Source::device;
  storage->device_ = device;
  storage->category_ = current_memory_category();
  storage->allocate_device_memory();
  return storage;
}

IntrusivePointer<Storage> Storage::borrow(void* data, std::size_t bytes,
                                          std::shared_ptr<void> keep_alive) {
  auto* storage = new Storage;
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->keep_alive_ = std::move(keep_alive);
  return IntrusivePointer<Storage>(storage);
}

IntrusivePointer<Storage> Storage::part_of(const Storage& whole, std::int64_t offset,
                                           std::size_t bytes) {
  IntrusivePointer<Storage> part = borrow(static_cast<std::byte*>(whole.data_) + offset, bytes);
  if (!(whole.device_ == cpu)) {
    part->device_ = whole.device_;
    part->keep_alive_ = whole.keep_alive_;
  }
  return part;
}

IntrusivePointer<Storage> Storage::none(std::size_t bytes) {
  auto* storage = new Storage;
  storage->source_ = Source::none;
  storage->device_ = meta;
  storage->bytes_ = bytes;
  if (bytes > 0 && memory_planned()) {
    storage->category_ = current_memory_category();
    storage->planned_ = occupied_bytes(bytes);
    storage->book_planned(storage->planned_);
  }
  return IntrusivePointer<Storage>(storage);
}

Storage::~Storage() {
  if (const StorageEnd ended = storage_end.load(std::memory_order_acquire)) [[unlikely]] {
    ended(this);
  }
  pending_.reset();  // it may still write the memory
  free_memory();
}

/// Also of a device: what is borrowed stays until the storage ends.
void Storage::free_memory() noexcept {
  switch (source_) {
    case Source::allocator:
      free_bytes(data_, bytes_, category_);
      break;
    case Source::peers:
      if (data_ != nullptr) {
        account_memory(category_, -occupied_bytes(bytes_));
      }
      keep_alive_.reset();
      break;
    case Source::device:
      keep_alive_.reset();
      break;
    case Source::none:
      released_ = true;
      if (booked_ > 0) {
        book_planned(0);
      }
      break;
    case Source::borrowed:
      return;
  }
  data_ = nullptr;
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
    require(source_ != Source::borrowed,
            "storage: borrowed memory cannot be released; its owner frees it");
    free_memory();
  });
}

void Storage::restore_memory() {
  change_memory(ActionKind::restore, *this, [this] {
    require(source_ != Source::borrowed,
            "storage: borrowed memory cannot be restored; its owner provides it");
    if (source_ == Source::none) {
      released_ = false;
      book_planned(planned_);
    } else if (data_ != nullptr || bytes_ == 0) {
      // It was not released.
    } else if (source_ == Source::device) {
      allocate_device_memory();
    } else if (source_ == Source::allocator || !allocate_peer_memory()) {
      source_ = Source::allocator;
      data_ = allocate_bytes(bytes_, category_);
    }
  });
}

void Storage::move_to(MemoryCategory category) {
  if (category == category_) {
    return;
  }
  std::int64_t booked = 0;
  switch (source_) {
    case Source::device:
      if (keep_alive_) {
        static_cast<DeviceMemory*>(keep_alive_.get())->move_to(category);
      }
      break;
    case Source::none:
      booked = memory_planned() ? booked_ : 0;
      break;
    case Source::allocator:
    case Source::peers:
      booked = data_ != nullptr ? occupied_bytes(bytes_) : 0;
      break;
    case Source::borrowed:
      break;
  }
  account_memory(category_, -booked);
  account_memory(category, booked);
  category_ = category;
}

}  // namespace tessera
