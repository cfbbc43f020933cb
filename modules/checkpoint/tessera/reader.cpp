module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <range/v3/view/zip.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :box;
import :checkpoint_files;
import :chunks;
import :coverage;
import :checkpoint_index;
import :parts;
import :save_plan;

namespace tessera {

namespace checkpoint_detail {

/// Boxes of a shape that the ranks of a layout hold, each once.
using HeldBoxes = std::vector<std::pair<LocalPart, int>>;

/// A part of a file that has something of a box: `both` is what they share.
struct PartOfBox {
  const std::string* file_name;
  PartFile* file;
  const StoredPart* part;
  LocalPart both;
};

struct CheckpointContent {
  std::string folder;
  std::unique_ptr<CheckpointFiles> place;
  CheckpointIndex index;
  NumberedTensors tensors;
  std::map<int, std::vector<const std::string*>> files_of_rank;
  // Made when they are needed; entries never move or vanish.
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<PartFile>> files;
  std::map<std::pair<std::int64_t, std::vector<std::int64_t>>, HeldBoxes> boxes;
  std::map<std::pair<std::int64_t, std::vector<std::int64_t>>, std::set<std::string>> known;

  std::string path_of(const std::string& file) const { return place->path_of(file); }
  PartFile& open(const std::string& name);
  /// The files that have something of a box.
  const std::set<std::string>& files_with(const IndexedTensor& tensor, const LocalPart& box);
  const HeldBoxes& boxes_of(const IndexedTensor& tensor);
  /// The parts that fill a box. Error (input): they overlap or leave gaps.
  std::vector<PartOfBox> parts_of(const std::string& name, const LocalPart& box);
};

namespace {

using ranges::views::zip;

std::string damage(const std::string& name, const std::string& file, const StoredPart& part,
                   std::size_t chunk) {
  return fmt::format("tensor '{}': bytes of '{}' in {} are not those that were saved (MiB {})",
                     name, key_of(name, part.box.offset), file, chunk);
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

/// The bytes of a part, of which the chunks that a box (indices within the part; not empty) touches
/// have been compared.
LoadedBytes compared_box(const std::string& folder, const std::string& name,
                         const std::string& file_name, const PartFile& file, const StoredPart& part,
                         std::size_t width, const LocalPart& box) {
  const auto [first, last] = ends_of(box, part.box.shape);
  ComparedPart compared =
      load_part(file, part, first * width / chunk_bytes, last * width / chunk_bytes);
  if (compared.damaged) {
    fail_input({.thing = folder,
                .wrong = damage(name, file_name, part, *compared.damaged),
                .advice = "use another checkpoint"});
  }
  return std::move(compared.loaded);
}

/// Layouts and lists of numbers as keys; -1: no layout.
std::pair<std::int64_t, std::vector<std::int64_t>> key_for(const Layout& layout,
                                                           std::initializer_list<Dims> dims) {
  std::vector<std::int64_t> numbers;
  for (const Dims& some : dims) {
    numbers.insert(numbers.end(), some.begin(), some.end());
  }
  return {layout ? std::int64_t{layout.id()} : -1, std::move(numbers)};
}

/// The files must be there, as large as they were, before one of them is read.
void check_sizes(const CheckpointContent& content) {
  for (const auto& [name, file] : content.index.files) {
    const std::string path = content.path_of(name);
    const CheckpointFiles::Size size = content.place->size_of(name);
    if (!size.problem.empty() || size.bytes != file.bytes) {
      fail_input({.thing = path,
                  .wrong = size.problem.empty()
                               ? std::string("the file is not the one that was saved")
                               : fmt::format("it cannot be read ({})", size.problem),
                  .expected = fmt::format("{} bytes", file.bytes),
                  .got = size.problem.empty() ? fmt::format("{}", size.bytes) : "",
                  .advice = "use another checkpoint"});
    }
  }
}

/// Opens all files, and finds parts that overlap or leave gaps.
void check_all(CheckpointContent& content, const std::string& path) {
  check_sizes(content);
  std::vector<std::vector<const LocalPart*>> boxes(content.tensors.size());
  for (const auto& [name, stored] : content.index.files) {
    const PartFile& file = content.open(name);
    check_header(content.path_of(name), file, content.tensors);
    for (const StoredPart& part : file.parts) {
      boxes[part.tensor].push_back(&part.box);
    }
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    check_coverage(content.tensors[i]->first, content.tensors[i]->second.info, boxes[i], path);
  }
}

}  // namespace

PartFile& CheckpointContent::open(const std::string& name) {
  const std::lock_guard lock(mutex);
  std::unique_ptr<PartFile>& file = files[name];
  if (!file) {
    file = open_parts(path_of(name), place->open(name), index.files.at(name), tensors);
  }
  return *file;
}

const HeldBoxes& CheckpointContent::boxes_of(const IndexedTensor& tensor) {
  const Dims& shape = tensor.info.shape;
  const auto [at, fresh] = boxes.try_emplace(key_for(tensor.layout, {shape}), HeldBoxes());
  if (fresh) {
    for (const int rank : tensor.layout.mesh().ranks()) {
      if (keeper_of(tensor.layout, rank) == rank) {
        at->second.emplace_back(local_part(shape, tensor.layout, rank), rank);
      }
    }
  }
  return at->second;
}

const std::set<std::string>& CheckpointContent::files_with(const IndexedTensor& tensor,
                                                           const LocalPart& box) {
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known.try_emplace(
      key_for(tensor.layout, {tensor.info.shape, box.offset, box.shape}), std::set<std::string>());
  if (!fresh) {
    return at->second;
  }
  const auto add = [&](int rank) {
    if (const auto of_rank = files_of_rank.find(rank); of_rank != files_of_rank.end()) {
      for (const std::string* file : of_rank->second) {
        at->second.insert(*file);
      }
    }
  };
  if (!tensor.layout) {
    add(0);
    return at->second;
  }
  for (const auto& [held, rank] : boxes_of(tensor)) {
    if (intersection(held, box)) {
      add(rank);
    }
  }
  return at->second;
}

std::vector<PartOfBox> CheckpointContent::parts_of(const std::string& name, const LocalPart& box) {
  const auto found = std::ranges::lower_bound(
      tensors, name, {}, [](const auto* entry) -> const std::string& { return entry->first; });
  const std::set<std::string>& names = files_with((*found)->second, box);
  std::vector<PartOfBox> parts;
  std::int64_t elements = 0;
  for (const std::string& file_name : names) {
    PartFile& file = open(file_name);
    for (const StoredPart& part : file.of(static_cast<std::size_t>(found - tensors.begin()))) {
      if (const auto both = intersection(part.box, box)) {
        parts.push_back({&file_name, &file, &part, *both});
        elements += both->shape.product();
      }
    }
  }
  if (elements != box.shape.product()) {
    fail_input({.thing = folder,
                .wrong = fmt::format("tensor '{}': its parts in {} overlap or leave gaps", name,
                                     fmt::join(names, ", ")),
                .expected = fmt::format("{} elements", box.shape.product()),
                .got = fmt::format("{}", elements),
                .advice = "use another checkpoint"});
  }
  return parts;
}

}  // namespace checkpoint_detail

CheckpointReader::CheckpointReader(const std::string& folder, OpenFiles open)
    : TensorSource(folder) {
  std::unique_ptr<checkpoint_detail::CheckpointFiles> place =
      checkpoint_detail::CheckpointFiles::at(folder);
  const std::string path = place->path_of(checkpoint_detail::index_name);
  if (!place->has_index()) {
    fail_input({.thing = folder,
                .wrong = fmt::format("it is not a checkpoint (it has no {})",
                                     checkpoint_detail::index_name),
                .advice = "name the folder of a checkpoint"});
  }
  content_ = std::make_shared<checkpoint_detail::CheckpointContent>();
  content_->folder = folder;
  content_->place = std::move(place);
  content_->index = checkpoint_detail::index_from_json(content_->place->index_text(), path);
  for (const auto& tensor : content_->index.tensors) {
    content_->tensors.push_back(&tensor);
  }
  for (const auto& [name, file] : content_->index.files) {
    files_.push_back(name);
    for (const int rank : file.ranks) {
      content_->files_of_rank[rank].push_back(&name);
    }
  }
  if (open == OpenFiles::all) {
    checkpoint_detail::check_all(*content_, path);
  }
  for (const auto& [name, tensor] : content_->index.tensors) {
    tensors_.emplace(name, tensor.info);
  }
  scalars_ = content_->index.scalars;
  meta_ = content_->index.meta;
  base_ = content_->index.base;
}

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

std::size_t CheckpointReader::files_opened() const {
  const std::lock_guard lock(content_->mutex);
  return content_->files.size();
}

std::uint64_t CheckpointReader::bytes_read() const {
  const std::lock_guard lock(content_->mutex);
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : content_->files) {
    bytes += file->bytes_read;
  }
  return bytes;
}

std::vector<std::string> CheckpointReader::verify() const {
  using namespace checkpoint_detail;
  std::vector<std::string> damages;
  for (const auto& [file_name, stored] : content_->index.files) {
    const PartFile& file = content_->open(file_name);
    for (const StoredPart& part : file.parts) {
      const auto damaged = load_part(file, part, 0, chunks_of(part.bytes) - 1).damaged;
      if (damaged) {
        damages.push_back(damage(content_->tensors[part.tensor]->first, file_name, part, *damaged));
      }
    }
  }
  check_all(*content_, path_);
  return damages;
}

std::size_t CheckpointReader::locate(const std::string& name, const LocalPart& box) const {
  const Dims& shape = info(name).shape;
  if (box.shape.product() == 0) {
    return 0;
  }
  if (!checkpoint_detail::is_inside(box, shape)) {
    fail_input({.thing = path_,
                .wrong = fmt::format("tensor '{}' has shape {}", name, to_string(shape)),
                .advice = fmt::format("the box of shape {} at {} is not inside it",
                                      to_string(box.shape), to_string(box.offset))});
  }
  return content_->parts_of(name, box).size();
}

void CheckpointReader::copy_box(const std::string& name, const LocalPart& box,
                                const Tensor& into) const {
  using namespace checkpoint_detail;
  const DType dtype = info(name).dtype;
  for (const auto& [file_name, file, part, both] : content_->parts_of(name, box)) {
    const LocalPart within{difference(both.offset, part->box.offset), both.shape};
    const LoadedBytes loaded =
        compared_box(path_, name, *file_name, *file, *part, size_of(dtype), within);
    copy_stored(*loaded.owner, loaded.bytes, {dtype, part->box.shape}, within,
                box_of(into, difference(both.offset, box.offset), both.shape),
                fmt::format("{}: tensor '{}'", content_->path_of(*file_name), name));
    file->bytes_read += static_cast<std::uint64_t>(both.shape.product()) * size_of(dtype);
  }
}

}  // namespace tessera
