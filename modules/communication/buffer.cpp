module;
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.ranks;
import :buffer;
import :state;

namespace tessera::collective {

SharedBuffer::SharedBuffer(std::shared_ptr<WorldState> state, std::uint64_t offset,
                           std::size_t bytes)
    : state_(std::move(state)), data_(state_->region->at(offset)), bytes_(bytes) {}

SharedBuffer::SharedBuffer(SharedBuffer&& other) noexcept
    : state_(std::move(other.state_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    state_ = std::move(other.state_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

SharedBuffer::~SharedBuffer() { release(); }

void SharedBuffer::release() noexcept {
  if (state_ && data_ != nullptr) {
    state_->retire(state_->region->offset_of(data_));
  }
  state_.reset();
  data_ = nullptr;
}

}  // namespace tessera::collective
