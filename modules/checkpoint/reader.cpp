module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <system_error>
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

namespace tessera {

namespace checkpoint_detail {

struct CheckpointContent {
  CheckpointIndex index;
  std::map<std::string, SafetensorsFile> files;
  /// For each part, which of its chunks have been compared with their hashes.
  std::map<const StoredPart*, std::unique_ptr<std::atomic<bool>[]>> compared;
};

namespace {

using ranges::views::zip;

/// The first chunk among [first, last] that does not have its hash; nothing when all do.
std::optional<std::size_t> damaged_chunk(const CheckpointContent& content, const StoredPart& part,
                                         std::size_t first, std::size_t last) {
  const std::span<const std::byte> bytes = content.files.at(part.file).bytes(part.key);
  std::atomic<bool>* const compared = content.compared.at(&part).get();
  for (std::size_t i = first; i <= last; ++i) {
    if (!compared[i].load(std::memory_order_relaxed)) {
      if (content_hash(chunk_at(bytes, i)) != part.hashes[i]) {
        content.files.at(part.file).check_intact();  // zeros have another hash
        return i;
      }
      compared[i].store(true, std::memory_order_relaxed);
    }
  }
  return std::nullopt;
}

std::string damage(const std::string& name, const StoredPart& part, std::size_t chunk) {
  return fmt::format("tensor '{}': bytes of '{}' in {} are not those that were saved (MiB {})",
                     name, part.key, part.file, chunk);
}

/// The offsets of the first and the last element of a box within a tensor of that shape.
std::pair<std::size_t, std::size_t> ends_of(const LocalPart& box, const Dims& shape) {
  const Dims strides = contiguous_strides(shape);
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (const auto [begin, extent, stride] : zip(box.offset, box.shape, strides)) {
    first += begin * stride;
    last += (begin + extent - 1) * stride;
  }
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(last)};
}

/// Compares the chunks that a box (indices within the part; not empty) touches.
void compare_box(const CheckpointContent& content, const std::string& folder,
                 const std::string& name, const StoredPart& part, const LocalPart& box) {
  const std::size_t width = size_of(content.index.tensors.at(name).info.dtype);
  const auto [first, last] = ends_of(box, part.box.shape);
  const auto chunk =
      damaged_chunk(content, part, first * width / chunk_bytes, last * width / chunk_bytes);
  if (chunk) {
    fail_input(
        {.thing = folder, .wrong = damage(name, part, *chunk), .advice = "use another checkpoint"});
  }
}

/// The intersection of two boxes; it has an extent below 1 when they are disjoint.
LocalPart intersection(const LocalPart& a, const LocalPart& b) {
  LocalPart both = a;
  for (int d = 0; d < a.shape.size(); ++d) {
    both.offset[d] = std::max(a.offset[d], b.offset[d]);
    both.shape[d] = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]) - both.offset[d];
  }
  return both;
}

bool is_empty(const LocalPart& box) {
  return std::any_of(box.shape.begin(), box.shape.end(),
                     [](std::int64_t extent) { return extent < 1; });
}

Dims difference(const Dims& a, const Dims& b) {
  Dims result = a;
  for (auto [value, less] : zip(result, b)) {
    value -= less;
  }
  return result;
}

/// The box of `x` at `begin` (x's own indices), sharing its memory.
Tensor box_of(const Tensor& x, const Dims& begin, const Dims& shape) {
  std::int64_t offset = x.offset();
  for (const auto [first, stride] : zip(begin, x.strides())) {
    offset += first * stride;
  }
  return alias(x, shape, x.strides(), offset);
}

/// Opens a file once its size and its header are known to be those that were saved.
SafetensorsFile open_file(const std::filesystem::path& path, const StoredFile& expected) {
  const MappedFile file(path.string());
  if (file.bytes().size() != expected.bytes) {
    fail_input({.thing = path.string(),
                .wrong = "the file is not the one that was saved",
                .expected = fmt::format("{} bytes", expected.bytes),
                .got = fmt::format("{}", file.bytes().size()),
                .advice = "use another checkpoint"});
  }
  const bool same_header = header_hash(file) == expected.header;
  file.check_intact();
  if (!same_header) {
    fail_input({.thing = path.string(),
                .wrong = "the file's header is not the one that was saved",
                .advice = "use another checkpoint"});
  }
  return SafetensorsFile(path.string());
}

void check_files(const CheckpointContent& content, const std::string& path) {
  for (const auto& [name, tensor] : content.index.tensors) {
    for (const StoredPart& part : tensor.parts) {
      const auto file = content.files.find(part.file);
      const TensorInfo expected{tensor.info.dtype, part.box.shape};
      if (file == content.files.end() || !file->second.contains(part.key) ||
          !(file->second.info(part.key) == expected)) {
        fail_input({.thing = path,
                    .wrong = fmt::format("tensor '{}': file '{}' has no key '{}' that is {}{}",
                                         name, part.file, part.key, name_of(expected.dtype),
                                         to_string(expected.shape)),
                    .advice = "use another checkpoint"});
      }
    }
  }
}

}  // namespace
}  // namespace checkpoint_detail

CheckpointReader::CheckpointReader(const std::string& folder) : TensorSource(folder) {
  const std::filesystem::path base(folder);
  const std::string path = (base / checkpoint_detail::index_name).string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail_input({.thing = folder,
                .wrong = fmt::format("it is not a checkpoint (it has no {})",
                                     checkpoint_detail::index_name),
                .advice = "name the folder of a checkpoint"});
  }
  auto content = std::make_shared<checkpoint_detail::CheckpointContent>();
  content->index = checkpoint_detail::read_index(path);
  checkpoint_detail::check_coverage(content->index, path);
  for (const auto& [name, file] : content->index.files) {
    content->files.emplace(name, checkpoint_detail::open_file(base / name, file));
  }
  checkpoint_detail::check_files(*content, path);
  for (const auto& [name, tensor] : content->index.tensors) {
    tensors_.emplace(name, tensor.info);
    for (const checkpoint_detail::StoredPart& part : tensor.parts) {
      content->compared.emplace(&part, new std::atomic<bool>[part.hashes.size()]());
    }
  }
  scalars_ = content->index.scalars;
  content_ = std::move(content);
}

const std::string& CheckpointReader::meta() const { return content_->index.meta; }

const std::string& CheckpointReader::saved_layout(const std::string& name) const {
  info(name);  // throws for a name that is not there
  return content_->index.tensors.at(name).layout;
}

std::uint64_t CheckpointReader::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : content_->index.files) {
    bytes += file.bytes;
  }
  return bytes;
}

std::uint64_t CheckpointReader::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : content_->files) {
    bytes += file.bytes_read();
  }
  return bytes;
}

std::vector<std::string> CheckpointReader::verify() const {
  using namespace checkpoint_detail;
  std::vector<std::string> damages;
  for (const auto& [name, tensor] : content_->index.tensors) {
    for (const StoredPart& part : tensor.parts) {
      if (const auto chunk = damaged_chunk(*content_, part, 0, part.hashes.size() - 1)) {
        damages.push_back(damage(name, part, *chunk));
      }
    }
  }
  return damages;
}

void CheckpointReader::copy_box(const std::string& name, const LocalPart& box,
                                const Tensor& into) const {
  using namespace checkpoint_detail;
  for (const StoredPart& part : content_->index.tensors.at(name).parts) {
    const LocalPart both = intersection(part.box, box);
    if (!is_empty(both)) {
      const LocalPart within{difference(both.offset, part.box.offset), both.shape};
      compare_box(*content_, path_, name, part, within);
      content_->files.at(part.file).read(
          part.key, within, box_of(into, difference(both.offset, box.offset), both.shape));
    }
  }
}

}  // namespace tessera
