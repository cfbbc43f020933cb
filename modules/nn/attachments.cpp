module;
#include <memory>
#include <string_view>
#include <utility>
module tessera.nn;

import tessera.base;
import :attachments;

namespace tessera::nn {

attachment_detail::Held::~Held() = default;

attachment_detail::Held* Attachments::find(std::string_view type) const {
  for (const Entry& entry : entries_) {
    if (entry.type == type) {
      return entry.held.get();
    }
  }
  return nullptr;
}

attachment_detail::Held* Attachments::add(std::string_view type,
                                          std::unique_ptr<attachment_detail::Held> held) {
  entries_.push_back({type, std::move(held)});
  return entries_.back().held.get();
}

}  // namespace tessera::nn
