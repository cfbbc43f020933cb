module;
#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :file;
import :index;
import :parts;

namespace tessera::checkpoint_detail {
namespace {

constexpr std::size_t digits = 32;  // of a hash

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input({.thing = path, .wrong = what, .advice = "use another checkpoint"});
}

/// "1,0"; nothing for any other text.
std::optional<Dims> offsets_of(std::string_view text) {
  Dims offsets;
  while (!text.empty()) {
    std::int64_t value = -1;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || value < 0 || offsets.size() == max_dims) {
      return std::nullopt;
    }
    offsets.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty() && (text.front() != ',' || text.size() == 1)) {
      return std::nullopt;
    }
    text.remove_prefix(text.empty() ? 0 : 1);
  }
  return offsets;
}

std::vector<std::string> split_hashes(const std::string& text) {
  std::vector<std::string> hashes;
  for (std::size_t at = 0; at < text.size(); at += digits) {
    hashes.push_back(text.substr(at, digits));
  }
  return hashes;
}

}  // namespace

std::unique_ptr<PartFile> open_parts(const std::string& path, const StoredFile& expected,
                                     const IndexedTensors& tensors) {
  {
    const MappedFile file(path);
    if (file.bytes().size() != expected.bytes) {
      fail_input({.thing = path,
                  .wrong = "the file is not the one that was saved",
                  .expected = fmt::format("{} bytes", expected.bytes),
                  .got = fmt::format("{}", file.bytes().size()),
                  .advice = "use another checkpoint"});
    }
    const bool same_header = header_hash(file) == expected.header;
    file.check_intact();
    if (!same_header) {
      wrong(path, "the file's header is not the one that was saved");
    }
  }
  auto opened = std::make_unique<PartFile>(SafetensorsFile(path));
  for (const auto& [key, info] : opened->file.tensors()) {
    const std::size_t at = key.rfind('@');
    const auto tensor = tensors.find(key.substr(0, at));
    const auto offset = at == std::string::npos ? std::nullopt : offsets_of(key.substr(at + 1));
    if (!offset || tensor == tensors.end() || tensor->second.info.dtype != info.dtype ||
        !is_inside({*offset, info.shape}, tensor->second.info.shape)) {
      wrong(path, fmt::format("'{}' ({}{}) is not a part of a tensor of the checkpoint", key,
                              name_of(info.dtype), to_string(info.shape)));
    }
    const std::size_t chunks = chunks_of(opened->file.bytes(key).size());
    const auto& metadata = opened->file.metadata();
    const auto hashes = metadata.find(key);
    if (hashes == metadata.end() || hashes->second.size() != chunks * digits) {
      wrong(path, fmt::format("'{}' does not have {} hashes, one for each MiB", key, chunks));
    }
    opened->parts[tensor->first].push_back(
        {key,
         {*offset, info.shape},
         split_hashes(hashes->second),
         std::unique_ptr<std::atomic<bool>[]>(new std::atomic<bool>[chunks]())});
  }
  return opened;
}

std::optional<std::size_t> damaged_chunk(const PartFile& file, const StoredPart& part,
                                         std::size_t first, std::size_t last) {
  const std::span<const std::byte> bytes = file.file.bytes(part.key);
  std::atomic<bool>* const compared = part.compared.get();
  for (std::size_t i = first; i <= last; ++i) {
    if (!compared[i].load(std::memory_order_relaxed)) {
      if (content_hash(chunk_at(bytes, i)) != part.hashes[i]) {
        file.file.check_intact();  // zeros have another hash
        return i;
      }
      compared[i].store(true, std::memory_order_relaxed);
    }
  }
  return std::nullopt;
}

}  // namespace tessera::checkpoint_detail
