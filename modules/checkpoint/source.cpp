module;
#include <fmt/format.h>

#include <filesystem>
#include <range/v3/view/zip.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera {

std::string CheckpointBase::found_from(const std::string& checkpoint) const {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (relative.empty() || fs::exists(path, ignored)) {
    return path;
  }
  const fs::path beside = (fs::path(checkpoint) / relative).lexically_normal();
  return fs::exists(beside, ignored) ? beside.string() : path;
}

TensorSource::TensorSource(std::string path) : path_(std::move(path)) {}
TensorSource::~TensorSource() = default;

const TensorInfo& TensorSource::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    std::vector<std::string> known;
    known.reserve(tensors_.size());
    for (const auto& [other, unused] : tensors_) {
      known.push_back(other);
    }
    fail_input({.thing = path_,
                .wrong = fmt::format("it has no tensor '{}'{}", name, did_you_mean(name, known))});
  }
  return found->second;
}

Tensor TensorSource::stored_rows(const std::string& name, std::int64_t /*row*/,
                                 std::int64_t /*rows*/) const {
  info(name);  // throws for a name that is not there
  return {};
}

std::string TensorSource::stored_type(const std::string& name) const {
  return std::string(name_of(info(name).dtype));
}

std::string TensorSource::saved_layout(const std::string& name) const {
  info(name);  // throws for a name that is not there
  return "";
}

void TensorSource::read(const std::string& name, const LocalPart& box, const Tensor& into) const {
  const TensorInfo& stored = info(name);
  bool inside = box.offset.size() == stored.shape.size() && box.shape.size() == stored.shape.size();
  for (const auto [begin, extent, whole] :
       ranges::views::zip(box.offset, box.shape, stored.shape)) {
    inside = inside && begin >= 0 && extent >= 0 && begin <= whole && extent <= whole - begin;
  }
  if (!inside) {
    fail_input({.thing = path_,
                .wrong = fmt::format("tensor '{}' has shape {}", name, to_string(stored.shape)),
                .advice = fmt::format("the box of shape {} at {} is not inside it",
                                      to_string(box.shape), to_string(box.offset))});
  }
  if (into.is_distributed() || into.is_meta()) {
    fail(
        {.thing = path_,
         .wrong = fmt::format("tensor '{}' can only be read into a plain tensor with memory", name),
         .got = to_string(into)});
  }
  if (!(into.shape() == box.shape)) {
    fail_input({.thing = path_,
                .wrong = fmt::format("tensor '{}' does not fit", name),
                .expected = fmt::format("shape {}", to_string(into.shape())),
                .got = to_string(box.shape)});
  }
  if (!can_cast(stored.dtype, into.dtype())) {
    fail_input({.thing = path_,
                .wrong = fmt::format("tensor '{}' holds {} and cannot be read as {}", name,
                                     name_of(stored.dtype), name_of(into.dtype())),
                .advice = "only floating types are cast"});
  }
  if (box.shape.product() > 0) {
    copy_box(name, box, into);
  }
}

Tensor TensorSource::read(const std::string& name) const {
  const TensorInfo& stored = info(name);
  Tensor whole = empty(stored.shape, stored.dtype);
  read(name, {Dims::filled(stored.shape.size(), 0), stored.shape}, whole);
  return whole;
}

}  // namespace tessera
