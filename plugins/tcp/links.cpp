#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.collective;

#include "links.hpp"

namespace tcp {

Checksum::Tag sealed(ChecksumSequence& seals, std::span<const std::byte> first,
                     std::span<const std::byte> second) {
  Checksum checksum = seals.next();
  checksum.add(first.data(), first.size());
  checksum.add(second.data(), second.size());
  return checksum.tag();
}

void OutMessage::seal(ChecksumSequence& seals, std::size_t bytes) {
  if (!begun) {
    begun = true;
    head_tag = tcp::sealed(seals, bytes_of(header), head);
    if (header.part_bytes > 0) {
      checksum.emplace(seals.next());
    }
  }
  while (bytes > 0 && !is_sealed()) {
    const MessageTransport::Part& part = parts[at_part];
    const std::size_t some = std::min(bytes, part.bytes - in_part);
    checksum->add(part.data + in_part, some);
    sealed += some;
    in_part += some;
    bytes -= some;
    if (in_part == part.bytes) {
      ++at_part;
      in_part = 0;
    }
    if (is_sealed()) {
      parts_tag = checksum->tag();
    }
  }
}

void OutMessage::put_pieces(std::vector<iovec>& pieces) {
  std::size_t skip = sent;
  const auto put = [&](const void* data, std::size_t bytes) {
    const std::size_t gone = std::min(skip, bytes);
    skip -= gone;
    if (gone < bytes) {
      pieces.push_back(
          {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + gone, bytes - gone});
    }
  };
  put(&header, sizeof(header));
  put(head.data(), head.size());
  put(head_tag.data(), head_tag.size());
  while (gone_parts < parts.size() &&
         before_parts() + gone_bytes + parts[gone_parts].bytes <= sent) {
    gone_bytes += parts[gone_parts++].bytes;
  }
  skip -= std::min(skip, gone_bytes);
  std::size_t left = sealed - gone_bytes;
  for (std::size_t i = gone_parts; i < parts.size() && left > 0; ++i) {
    const std::size_t some = std::min(left, parts[i].bytes);
    put(parts[i].data, some);
    left -= some;
  }
  if (header.part_bytes > 0 && is_sealed()) {
    put(parts_tag.data(), parts_tag.size());
  }
}

}  // namespace tcp
