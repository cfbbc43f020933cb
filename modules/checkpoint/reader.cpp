module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :file;
import :index;

namespace tessera {

namespace checkpoint_detail {

struct CheckpointContent {
  CheckpointIndex index;
  std::map<std::string, SafetensorsFile> files;
};

namespace {

/// What two boxes share; not a box (an extent below 1) when they share nothing.
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
  for (int d = 0; d < a.size(); ++d) {
    result[d] -= b[d];
  }
  return result;
}

/// The box of `x` at `begin` (x's own indices), sharing its memory.
Tensor box_of(const Tensor& x, const Dims& begin, const Dims& shape) {
  std::int64_t offset = x.offset();
  for (int d = 0; d < begin.size(); ++d) {
    offset += begin[d] * x.strides()[d];
  }
  return alias(x, shape, x.strides(), offset);
}

void check_files(const CheckpointContent& content, const std::string& path) {
  for (const auto& [name, bytes] : content.index.files) {
    const std::uint64_t got = content.files.at(name).file_bytes();
    if (got != bytes) {
      fail_input(
          fmt::format("{}: file '{}' is not the one that was saved (expected {} bytes, got "
                      "{}); use another checkpoint",
                      path, name, bytes, got));
    }
  }
  for (const auto& [name, tensor] : content.index.tensors) {
    for (const StoredPart& part : tensor.parts) {
      const auto file = content.files.find(part.file);
      const TensorInfo expected{tensor.info.dtype, part.box.shape};
      if (file == content.files.end() || !file->second.contains(part.key) ||
          !(file->second.info(part.key) == expected)) {
        fail_input(fmt::format(
            "{}: tensor '{}': file '{}' does not hold '{}' as {}{}; use another "
            "checkpoint",
            path, name, part.file, part.key, name_of(expected.dtype), to_string(expected.shape)));
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
    fail_input(
        fmt::format("{}: it is not a checkpoint (there is no {} in it); name a folder that "
                    "was saved",
                    folder, checkpoint_detail::index_name));
  }
  auto content = std::make_shared<checkpoint_detail::CheckpointContent>();
  content->index = checkpoint_detail::index_from_json(checkpoint_detail::read_text(path), path);
  checkpoint_detail::check_coverage(content->index, path);
  for (const auto& [name, bytes] : content->index.files) {
    content->files.emplace(name, SafetensorsFile((base / name).string()));
  }
  checkpoint_detail::check_files(*content, path);
  for (const auto& [name, tensor] : content->index.tensors) {
    tensors_.emplace(name, tensor.info);
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
  for (const auto& [name, file_bytes] : content_->index.files) {
    bytes += file_bytes;
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

void CheckpointReader::copy_box(const std::string& name, const LocalPart& box,
                                const Tensor& into) const {
  using namespace checkpoint_detail;
  for (const StoredPart& part : content_->index.tensors.at(name).parts) {
    const LocalPart both = intersection(part.box, box);
    if (!is_empty(both)) {
      content_->files.at(part.file).read(
          part.key, {difference(both.offset, part.box.offset), both.shape},
          box_of(into, difference(both.offset, box.offset), both.shape));
    }
  }
}

}  // namespace tessera
