module;
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
module tessera.nn;

import tessera.base;
import :attachments;

namespace tessera::nn {
namespace {

/// Whether they are one name. Names of types begin alike and differ at the end.
bool same(std::string_view a, std::string_view b) {
  constexpr std::size_t end = 8;
  return a.size() == b.size() &&
         (a.size() < end || std::memcmp(&a[a.size() - end], &b[b.size() - end], end) == 0) &&
         a == b;
}

}  // namespace

attachment_detail::AttachedValue::~AttachedValue() = default;

attachment_detail::AttachedValue* Attachments::find(std::string_view type) const {
  for (const Entry& entry : entries_) {
    if (same(entry.type, type)) {
      return entry.held.get();
    }
  }
  return nullptr;
}

attachment_detail::AttachedValue* Attachments::add(
    std::string_view type, std::unique_ptr<attachment_detail::AttachedValue> held) {
  entries_.push_back({type, std::move(held)});
  return entries_.back().held.get();
}

}  // namespace tessera::nn
