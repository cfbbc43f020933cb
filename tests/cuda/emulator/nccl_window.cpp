#include "nccl_window.hpp"

#include <algorithm>
#include <iterator>

#include "nccl_api.hpp"
#include "text.hpp"

namespace emulator {
namespace {

constexpr int offset_bits = 40;

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

WindowMemory& WindowMemory::instance() {
  static auto* all = new WindowMemory;
  return *all;
}

void WindowMemory::add(void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  pieces_[static_cast<std::byte*>(data)] = {.bytes = bytes};
}

std::string WindowMemory::remove(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(static_cast<std::byte*>(data));
  if (found == pieces_.end()) {
    return "it is not of ncclMemAlloc, or was freed";
  }
  if (found->second.windows > 0) {
    return "a window of it is still registered; call ncclCommWindowDeregister before";
  }
  pieces_.erase(found);
  return {};
}

std::map<const std::byte*, WindowMemory::Piece>::iterator WindowMemory::find(const void* data) {
  const auto after = pieces_.upper_bound(static_cast<const std::byte*>(data));
  return after == pieces_.begin() ? pieces_.end() : std::prev(after);
}

std::string WindowMemory::check(const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(data);
  const auto found = find(data);
  if (found == pieces_.end() || begin >= found->first + found->second.bytes) {
    return "at an address that is not memory of ncclMemAlloc";
  }
  const std::byte* const end = found->first + found->second.bytes;
  if (begin + bytes > end) {
    return text("that end ", begin + bytes - end, " bytes past the memory of ncclMemAlloc");
  }
  if ((begin - found->first) % tessera::nccl::window_alignment != 0) {
    return text("at an address that is no multiple of ", tessera::nccl::window_alignment);
  }
  return {};
}

std::uint64_t WindowMemory::bytes() {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [data, piece] : pieces_) {
    sum += piece.bytes;
  }
  return sum;
}

void WindowMemory::count(const void* data, int windows) {
  const std::lock_guard lock(mutex_);
  if (const auto found = find(data); found != pieces_.end()) {
    found->second.windows += windows;
  }
}

bool Windows::any() const { return std::ranges::any_of(all_, &One::live); }

std::string Windows::check(const void* data, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  const bool overlaps = std::ranges::any_of(
      all_, [&](const One& one) { return one.live && overlap(one.data, one.bytes, begin, bytes); });
  return overlaps ? "which overlap another window of the communicator"
                  : WindowMemory::instance().check(data, bytes);
}

std::uint64_t Windows::add(const void* data, std::size_t bytes) {
  WindowMemory::instance().count(data, 1);
  all_.push_back({static_cast<const std::byte*>(data), bytes});
  return all_.size();
}

std::string Windows::remove(std::uint64_t number) {
  if (number == 0 || number > all_.size() || !all_[number - 1].live) {
    return "it is not a window of the communicator, or no more";
  }
  all_[number - 1].live = false;
  WindowMemory::instance().count(all_[number - 1].data, -1);
  return {};
}

void Windows::remove_all() {
  for (std::uint64_t number = 1; number <= all_.size(); ++number) {
    remove(number);
  }
}

std::string Windows::find(const void* data, std::size_t bytes, std::uint64_t& place) const {
  place = 0;
  const auto* const begin = static_cast<const std::byte*>(data);
  const auto inside = [&](const One& one) {
    return begin >= one.data && begin < one.data + one.bytes;
  };
  const auto live =
      std::ranges::find_if(all_, [&](const One& one) { return one.live && inside(one); });
  if (live == all_.end()) {
    return std::ranges::any_of(all_, inside)
               ? "in memory that was a window until ncclCommWindowDeregister"
               : "";
  }
  if (begin + bytes > live->data + live->bytes) {
    return text(bytes, " bytes that begin in a window and end ",
                begin + bytes - live->data - live->bytes, " bytes past it");
  }
  const auto number = static_cast<std::uint64_t>(live - all_.begin()) + 1;
  place = (number << offset_bits) + 1 + static_cast<std::uint64_t>(begin - live->data);
  return {};
}

std::string Windows::describe(std::uint64_t place) {
  return place == 0 ? "in no window"
                    : text("at byte ", (place & ((std::uint64_t{1} << offset_bits) - 1)) - 1,
                           " of window ", place >> offset_bits);
}

bool window_calls_agree(const Region& region, int rank, std::uint64_t number, std::string& wrong) {
  const auto call_of = [&](int of) -> Region::WindowCall& {
    return region.member(of).windows[number % Region::most_windows];
  };
  const Region::WindowCall& own = call_of(rank);
  for (int other = 0; other < region.size(); ++other) {
    const Region::WindowCall& call = call_of(other);
    if (call.called == 0) {
      return false;
    }
    if (call.bytes != own.bytes || call.flags != own.flags) {
      wrong = text("rank ", other, " registers ", call.bytes, " bytes with flags ", call.flags,
                   " where rank ", rank, " registers ", own.bytes, " with flags ", own.flags);
    } else if (call.collectives != own.collectives) {
      wrong = text("rank ", other, " registers it after ", call.collectives, " collectives, rank ",
                   rank, " after ", own.collectives);
    }
  }
  return true;
}

}  // namespace emulator
