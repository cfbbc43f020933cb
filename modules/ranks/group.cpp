module;
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
module tessera.ranks;

import tessera.base;
import :control;
import :member;
import :region;

namespace tessera::collective {

GroupBlock* find_group(Region& region, std::span<const int> ranks, std::string_view name) {
  const auto* control = reinterpret_cast<const Control*>(region.base());
  for (std::uint64_t at = control->first_group.load(std::memory_order_acquire); at != 0;) {
    auto* group = reinterpret_cast<GroupBlock*>(region.at(at));
    if (name == std::string_view(group->name, group->name_bytes) &&
        std::equal(ranks.begin(), ranks.end(), group->ranks(), group->ranks() + group->size)) {
      return group;
    }
    at = group->next;
  }
  return nullptr;
}

GroupBlock* find_or_make_group(Region& region, std::span<const int> ranks, std::string_view name,
                               bool fake) {
  if (GroupBlock* const known = find_group(region, ranks, name)) {
    return known;
  }
  auto* control = reinterpret_cast<Control*>(region.base());
  const std::size_t size_here = ranks.size();
  const std::size_t head = (sizeof(GroupBlock) + 4 * size_here + 63) / 64 * 64;
  const std::size_t used = fake ? 0 : size_here;
  const std::size_t bytes = head + sizeof(Member) * used;
  const std::uint64_t offset =
      control->extents.allocate(region.base(), (bytes + 4095) & ~std::size_t{4095}, 4096);
  if (offset == 0) {
    return nullptr;
  }
  auto* group = new (region.at(offset)) GroupBlock;
  group->size = static_cast<std::uint32_t>(size_here);
  group->name_bytes = static_cast<std::uint32_t>(name.size());
  std::memcpy(group->name, name.data(), name.size());
  std::copy(ranks.begin(), ranks.end(), group->ranks());
  group->members = offset + head;
  for (std::size_t m = 0; m < used; ++m) {
    new (region.at(group->members + m * sizeof(Member))) Member;
  }
  group->next = control->first_group.load(std::memory_order_relaxed);
  control->first_group.store(offset, std::memory_order_release);
  return group;
}

}  // namespace tessera::collective
