module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <range/v3/view/zip.hpp>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :index;
import :parts;
import :plan;

namespace tessera {

namespace checkpoint_detail {

/// What the ranks of a layout hold of a shape, each box once.
using HeldBoxes = std::vector<std::pair<LocalPart, int>>;

struct CheckpointContent {
  std::string folder;
  CheckpointIndex index;
  std::map<int, const std::string*> file_of_rank;
  // Made when they are needed; entries never move or vanish.
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<PartFile>> files;
  std::map<std::pair<std::uint32_t, std::vector<std::int64_t>>, HeldBoxes> boxes;

  const PartFile& open(const std::string& name);
  /// The files that have something of a box.
  std::set<std::string> files_with(const IndexedTensor& tensor, const LocalPart& box);
  const HeldBoxes& boxes_of(const IndexedTensor& tensor);
};

namespace {

using ranges::views::zip;

std::string damage(const std::string& name, const std::string& file, const StoredPart& part,
                   std::size_t chunk) {
  return fmt::format("tensor '{}': bytes of '{}' in {} are not those that were saved (MiB {})",
                     name, part.key, file, chunk);
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

/// Compares the chunks that a box (indices within the part; not empty) touches.
void compare_box(const std::string& folder, const std::string& name, const std::string& file_name,
                 const PartFile& file, const StoredPart& part, const LocalPart& box) {
  const std::size_t width = size_of(file.file.info(part.key).dtype);
  const auto [first, last] = ends_of(box, part.box.shape);
  const auto chunk =
      damaged_chunk(file, part, first * width / chunk_bytes, last * width / chunk_bytes);
  if (chunk) {
    fail_input({.thing = folder,
                .wrong = damage(name, file_name, part, *chunk),
                .advice = "use another checkpoint"});
  }
}

/// The files must be there, as large as they were.
void check_sizes(const CheckpointContent& content) {
  for (const auto& [name, file] : content.index.files) {
    const std::filesystem::path path = std::filesystem::path(content.folder) / name;
    std::error_code problem;
    const std::uintmax_t bytes = std::filesystem::file_size(path, problem);
    if (problem || bytes != file.bytes) {
      fail_input({.thing = path.string(),
                  .wrong = problem ? fmt::format("it cannot be read ({})", problem.message())
                                   : std::string("the file is not the one that was saved"),
                  .expected = fmt::format("{} bytes", file.bytes),
                  .got = problem ? "" : fmt::format("{}", bytes),
                  .advice = "use another checkpoint"});
    }
  }
}

/// Opens all files, and finds parts that overlap or leave gaps.
void check_all(CheckpointContent& content, const std::string& path) {
  std::map<std::string, std::vector<const LocalPart*>> parts;
  for (const auto& [name, file] : content.index.files) {
    for (const auto& [tensor, stored] : content.open(name).parts) {
      for (const StoredPart& part : stored) {
        parts[tensor].push_back(&part.box);
      }
    }
  }
  for (const auto& [name, tensor] : content.index.tensors) {
    check_coverage(name, tensor.info, parts[name], path);
  }
}

}  // namespace

const PartFile& CheckpointContent::open(const std::string& name) {
  const std::lock_guard lock(mutex);
  std::unique_ptr<PartFile>& file = files[name];
  if (!file) {
    file = open_parts((std::filesystem::path(folder) / name).string(), index.files.at(name),
                      index.tensors);
  }
  return *file;
}

const HeldBoxes& CheckpointContent::boxes_of(const IndexedTensor& tensor) {
  const Dims& shape = tensor.info.shape;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] =
      boxes.try_emplace({tensor.layout.id(), {shape.begin(), shape.end()}}, HeldBoxes());
  if (fresh) {
    for (const int rank : tensor.layout.mesh().ranks()) {
      if (keeper_of(tensor.layout, rank) == rank) {
        at->second.emplace_back(local_part(shape, tensor.layout, rank), rank);
      }
    }
  }
  return at->second;
}

std::set<std::string> CheckpointContent::files_with(const IndexedTensor& tensor,
                                                    const LocalPart& box) {
  std::set<std::string> names;
  const auto add = [&](int rank) {
    if (const auto file = file_of_rank.find(rank); file != file_of_rank.end()) {
      names.insert(*file->second);
    }
  };
  if (!tensor.layout) {
    add(0);
    return names;
  }
  for (const auto& [held, rank] : boxes_of(tensor)) {
    if (!is_empty(held) && !is_empty(intersection(held, box))) {
      add(rank);
    }
  }
  return names;
}

}  // namespace checkpoint_detail

CheckpointReader::CheckpointReader(const std::string& folder, OpenFiles open)
    : TensorSource(folder) {
  const std::filesystem::path base(folder);
  const std::string path = (base / checkpoint_detail::index_name).string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail_input({.thing = folder,
                .wrong = fmt::format("it is not a checkpoint (it has no {})",
                                     checkpoint_detail::index_name),
                .advice = "name the folder of a checkpoint"});
  }
  content_ = std::make_shared<checkpoint_detail::CheckpointContent>();
  content_->folder = folder;
  content_->index = checkpoint_detail::read_index(path);
  for (const auto& [name, file] : content_->index.files) {
    for (const int rank : file.ranks) {
      content_->file_of_rank.emplace(rank, &name);
    }
  }
  checkpoint_detail::check_sizes(*content_);
  if (open == OpenFiles::all) {
    checkpoint_detail::check_all(*content_, path);
  }
  for (const auto& [name, tensor] : content_->index.tensors) {
    tensors_.emplace(name, tensor.info);
  }
  scalars_ = content_->index.scalars;
}

const std::string& CheckpointReader::meta() const { return content_->index.meta; }

std::string CheckpointReader::saved_layout(const std::string& name) const {
  info(name);  // throws for a name that is not there
  return checkpoint_detail::layout_text(content_->index.tensors.at(name).layout);
}

std::uint64_t CheckpointReader::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : content_->index.files) {
    bytes += file.bytes;
  }
  return bytes;
}

std::size_t CheckpointReader::files() const { return content_->index.files.size(); }

std::size_t CheckpointReader::files_opened() const {
  const std::lock_guard lock(content_->mutex);
  return content_->files.size();
}

std::uint64_t CheckpointReader::bytes_read() const {
  const std::lock_guard lock(content_->mutex);
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : content_->files) {
    bytes += file->file.bytes_read();
  }
  return bytes;
}

std::vector<std::string> CheckpointReader::verify() const {
  using namespace checkpoint_detail;
  std::vector<std::string> damages;
  for (const auto& [file_name, stored] : content_->index.files) {
    const PartFile& file = content_->open(file_name);
    for (const auto& [name, parts] : file.parts) {
      for (const StoredPart& part : parts) {
        if (const auto chunk = damaged_chunk(file, part, 0, part.hashes.size() - 1)) {
          damages.push_back(damage(name, file_name, part, *chunk));
        }
      }
    }
  }
  check_all(*content_, path_);
  return damages;
}

void CheckpointReader::copy_box(const std::string& name, const LocalPart& box,
                                const Tensor& into) const {
  using namespace checkpoint_detail;
  const std::set<std::string> files = content_->files_with(content_->index.tensors.at(name), box);
  std::int64_t copied = 0;
  for (const std::string& file_name : files) {
    const PartFile& file = content_->open(file_name);
    const auto parts = file.parts.find(name);
    if (parts == file.parts.end()) {
      continue;
    }
    for (const StoredPart& part : parts->second) {
      const LocalPart both = intersection(part.box, box);
      if (!is_empty(both)) {
        const LocalPart within{difference(both.offset, part.box.offset), both.shape};
        compare_box(path_, name, file_name, file, part, within);
        file.file.read(part.key, within,
                       box_of(into, difference(both.offset, box.offset), both.shape));
        copied += both.shape.product();
      }
    }
  }
  if (copied != box.shape.product()) {
    fail_input({.thing = path_,
                .wrong = fmt::format("tensor '{}': its parts in {} overlap or leave gaps", name,
                                     fmt::join(files, ", ")),
                .expected = fmt::format("{} elements", box.shape.product()),
                .got = fmt::format("{}", copied),
                .advice = "use another checkpoint"});
  }
}

}  // namespace tessera
