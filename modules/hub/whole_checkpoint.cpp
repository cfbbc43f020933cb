module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.hub;

import tessera.base;
import tessera.data;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view model_prefix = "model.";
constexpr const char* how_to_name =
    "name the place where it is now: --base PATH, or model.base in a config";

/// The files with a model's weights, in the order of their names.
std::vector<std::string> weight_files(const std::string& path) {
  if (is_checkpoint(path)) {
    return {(fs::path(path) / "checkpoint.json").string()};
  }
  if (const std::string gguf = gguf_file(path); !gguf.empty()) {
    return {gguf};
  }
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    return {path};  // a program of torch.export
  }
  std::vector<std::string> files;
  const OpenedTensors opened = open_hub_tensors(path);
  for (const std::string& name : opened.source->files()) {
    files.push_back((fs::path(path) / name).string());
  }
  std::ranges::sort(files);
  return files;
}

/// The tensors that a checkpoint has, and those of its base by the names of the checkpoint.
class CompletedSource final : public TensorSource {
 public:
  /// `base`: null where nothing of it is read. Both must outlive this.
  CompletedSource(const CheckpointReader& stored, const FolderWeights* base)
      : TensorSource(stored.path()), stored_(stored), base_weights_(base) {
    tensors_ = stored.tensors();
    scalars_ = stored.scalars();
    meta_ = stored.meta();
    files_ = stored.files();
    for (const auto& [name, info] : stored.base()->tensors) {
      tensors_.emplace(name, info);
      if (base != nullptr) {
        check(name, info);
      }
    }
  }

  std::string saved_layout(const std::string& name) const override {
    return stored_.contains(name) ? stored_.saved_layout(name) : TensorSource::saved_layout(name);
  }
  std::uint64_t bytes_read() const override {
    return stored_.bytes_read() +
           (base_weights_ == nullptr ? 0 : base_weights_->source().bytes_read());
  }

 private:
  static std::string name_in_base(const std::string& name) {
    return name.starts_with(model_prefix) ? name.substr(model_prefix.size()) : name;
  }

  /// The weight that this tensor has codes or scales of; empty: it is a weight itself.
  std::string packed_weight(const std::string& name) const {
    const std::string own = name_in_base(name);
    const std::size_t dot = own.rfind('.') + 1;
    const std::string part = own.substr(dot);
    const bool packed = std::ranges::find(nf4_parts, part) != nf4_parts.end();
    return packed && !base_weights_->source().contains(own) ? own.substr(0, dot) + "weight" : "";
  }

  void check(const std::string& name, const TensorInfo& info) const {
    const TensorSource& weights = base_weights_->source();
    if (const std::string weight = packed_weight(name); weights.contains(weight)) {
      return;
    }
    if (!(weights.info(name_in_base(name)).shape == info.shape)) {
      fail_input({.thing = weights.path(),
                  .wrong = fmt::format("it is not the base of {}: the shape of tensor '{}' differs",
                                       stored_.path(), name_in_base(name)),
                  .expected = to_string(info.shape),
                  .got = to_string(weights.info(name_in_base(name)).shape)});
    }
  }

  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    if (stored_.contains(name)) {
      stored_.read(name, box, into);
      return;
    }
    if (base_weights_ == nullptr) {
      fail({.thing = path_, .wrong = fmt::format("tensor '{}' is in its base", name)});
    }
    if (const std::string weight = packed_weight(name); !weight.empty()) {
      copy_packed(weight, name.substr(name.rfind('.') + 1), box, into);
      return;
    }
    // A run in a narrower type has rounded the values.
    const DType dtype = info(name).dtype;
    if (into.dtype() == dtype) {
      base_weights_->source().read(name_in_base(name), box, into);
      return;
    }
    const Tensor values = empty(box.shape, dtype);
    base_weights_->source().read(name_in_base(name), box, values);
    ops::copy_(into, values);
  }

  /// Packs the weight, unless the last call did: its parts are read one after the other.
  void copy_packed(const std::string& weight, const std::string& part, const LocalPart& box,
                   const Tensor& into) const {
    const std::lock_guard lock(mutex_);
    if (packed_weight_ != weight) {
      const TensorSource& weights = base_weights_->source();
      const Dims& shape = weights.info(weight).shape;
      const Tensor values = empty(shape, DType::f32);
      weights.read(weight, {Dims::filled(shape.size(), 0), shape}, values);
      packed_.emplace(pack_nf4(values), path_);
      packed_weight_ = weight;
    }
    packed_->read(part, box, into);
  }

  const CheckpointReader& stored_;
  const FolderWeights* base_weights_;
  mutable std::mutex mutex_;
  mutable std::string packed_weight_;  // the name of the weight in packed_
  mutable std::optional<TensorsInMemory> packed_;
};

/// The place of the base. Error (input): nothing is there, or it names a base itself.
std::string place_of_base(const CheckpointReader& reader, const std::string& moved) {
  const std::string path = moved.empty() ? reader.base()->found_from(reader.path()) : moved;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail_input({.thing = reader.path(),
                .wrong = fmt::format("it leaves out the weights that were not trained, and the "
                                     "model that has them is not there: {}",
                                     path),
                .advice = how_to_name});
  }
  if (is_checkpoint(path)) {
    const CheckpointReader base(path, OpenFiles::when_read);
    if (base.base()) {
      fail_input({.thing = path,
                  .wrong = fmt::format("it cannot be the base of {}, as it leaves out weights "
                                       "itself (those of {})",
                                       reader.path(), base.base()->path),
                  .expected = "a model with all its weights"});
    }
  }
  return path;
}

}  // namespace

std::string base_hash(const std::string& path) {
  ContentHash hash;
  for (const std::string& file : weight_files(path)) {
    const data::DataFile data(file);
    data::for_each_piece(data, data.size(),
                         [&](std::span<const std::byte> bytes) { hash.add(bytes); });
    const std::string size = fmt::format("{};", data.size());
    hash.add(std::as_bytes(std::span(size)));
  }
  return hash.hex();
}

void check_is_base(const CheckpointBase& base, const std::string& path, const std::string& hash,
                   const std::string& checkpoint) {
  if (hash != base.hash) {
    fail_input({.thing = checkpoint,
                .wrong = fmt::format("the weights that it leaves out were those of {} when it was "
                                     "saved, and {} has other ones now",
                                     base.path, path),
                .expected = "the hash " + base.hash,
                .got = hash,
                .advice = how_to_name});
  }
}

struct WholeCheckpoint::Content {
  Content(const std::string& folder, OpenFiles open) : reader(folder, open) {}
  CheckpointReader reader;
  std::optional<FolderWeights> base = {};
  std::optional<CompletedSource> completed = {};
};

WholeCheckpoint::WholeCheckpoint(const std::string& folder, OpenFiles open, BaseUse use,
                                 const std::string& moved) {
  auto content = std::make_unique<Content>(folder, open);
  const CheckpointReader& reader = content->reader;
  if (!reader.base() && !moved.empty()) {
    fail_input({.thing = folder,
                .wrong = "it has all its weights, and no base",
                .advice = "leave out --base, or model.base"});
  }
  if (reader.base() && use != BaseUse::names) {
    const std::string base = place_of_base(reader, moved);
    if (use == BaseUse::values) {
      check_is_base(*reader.base(), base, base_hash(base), folder);
    }
    content->base.emplace(base, stored_model(reader.meta(), folder));
  }
  if (reader.base()) {
    content->completed.emplace(reader, content->base ? &*content->base : nullptr);
  }
  content_ = std::move(content);
}

WholeCheckpoint::~WholeCheckpoint() = default;

const CheckpointReader& WholeCheckpoint::reader() const { return content_->reader; }

const TensorSource& WholeCheckpoint::tensors() const {
  if (content_->completed) {
    return *content_->completed;
  }
  return content_->reader;
}

}  // namespace tessera::hub
