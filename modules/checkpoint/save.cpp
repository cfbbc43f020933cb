module;
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :file;
import :index;
import :together;

namespace tessera {
namespace checkpoint_detail {
namespace {

namespace fs = std::filesystem;

/// Whether the folder has only files that a save writes: nothing else is ever removed.
bool holds_only_a_save(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file(error) ||
        (name != index_name && !(name.starts_with("rank-") && name.ends_with(".safetensors")))) {
      return false;
    }
  }
  return !error;
}

/// Removes what crashed saves have left beside the folder; a save in progress holds the
/// lock of its own folder.
void remove_leftovers(const std::string& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    if (entry.path().filename().string().find(".tmp-") == std::string::npos ||
        entry.is_symlink(error) || !entry.is_directory(error)) {
      continue;
    }
    const FolderLock lock(entry.path().string());
    if (lock.held() && holds_only_a_save(entry.path())) {
      fs::remove_all(entry.path(), error);
    }
  }
}

std::string make_temporary(const std::string& folder) {
  static std::atomic<int> count{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const fs::path clean =
      fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
  std::string name = fmt::format("{}.tmp-{:x}-{:x}-{}", clean.string(), ::getpid(), now, ++count);
  fs::create_directory(name);
  return name;
}

void check_target(const std::string& folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_empty(folder, ignored) &&
      !(fs::is_directory(folder, ignored) && fs::exists(fs::path(folder) / index_name, ignored))) {
    fail_input({.thing = "checkpoint",
                .wrong = fmt::format("'{}' exists and is not a checkpoint", folder),
                .advice = "save elsewhere or remove it"});
  }
}

/// The box of `tensor` that this rank must write; nothing when another rank writes it or it is
/// empty.
std::optional<LocalPart> part_to_write(const std::string& name, const Tensor& tensor, int rank) {
  if (!tensor || tensor.is_meta()) {
    fail({.thing = "checkpoint",
          .wrong = fmt::format("tensor '{}' has no memory", name),
          .advice = "materialize the model first"});
  }
  LocalPart part{Dims::filled(tensor.dims(), 0), tensor.shape()};
  if (!tensor.is_distributed()) {
    return rank == 0 && tensor.numel() > 0 ? std::optional(part) : std::nullopt;
  }
  const Layout& layout = tensor.layout();
  if (layout.has_partial()) {
    fail({.thing = "checkpoint",
          .wrong = fmt::format("tensor '{}' is {}: its ranks hold partial values", name,
                               to_string(layout)),
          .advice = "redistribute it first"});
  }
  const std::optional<Dims> coordinates = layout.mesh().coordinates_of(rank);
  if (!coordinates) {
    return std::nullopt;
  }
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_replicate() && (*coordinates)[axis] != 0) {
      return std::nullopt;
    }
  }
  part = local_part(tensor.shape(), layout, *coordinates);
  return part.shape.product() > 0 ? std::optional(part) : std::nullopt;
}

/// A tensor's own elements (of this rank), one after the other.
Tensor packed_of(const Tensor& tensor) {
  return ops::contiguous(on_host(detached(tensor.is_distributed() ? tensor.local() : tensor)));
}

std::span<const std::byte> bytes_of(const Tensor& packed) {
  return {static_cast<const std::byte*>(packed.raw_data()),
          static_cast<std::size_t>(packed.numel()) * size_of(packed.dtype())};
}

/// The hashes of a packed tensor's bytes, after a look at the values.
std::vector<std::string> checked_hashes(const std::string& name, const Tensor& packed,
                                        const SaveOptions& options) {
  const std::span<const std::byte> bytes = bytes_of(packed);
  if (options.only_finite && !all_finite(bytes, packed.dtype())) {
    fail({.thing = "checkpoint",
          .wrong = fmt::format("tensor '{}' holds values that are NaN or infinite", name),
          .advice = "nothing was saved"});
  }
  return hashes_of(bytes);
}

/// Writes this rank's file, if it has to write anything, and says what is in it.
CheckpointIndex write_shards(const std::string& folder, const StateDict& state, int rank,
                             const SaveOptions& options) {
  CheckpointIndex index;
  const std::string file = fmt::format("rank-{}.safetensors", rank);
  std::map<std::string, TensorInfo> keys;
  std::vector<std::string> mine;  // tensors of which this rank writes a part
  for (const auto& [name, tensor] : state.tensors) {
    const std::optional<LocalPart> part = part_to_write(name, tensor, rank);
    IndexedTensor indexed{{tensor.dtype(), tensor.shape()}, "plain", {}};
    if (tensor.is_distributed()) {
      indexed.layout = to_string(tensor.layout()) + " on " + to_string(tensor.layout().mesh());
    }
    if (part) {
      const std::string key = fmt::format("{}@{}", name, fmt::join(part->offset.span(), ","));
      indexed.parts.push_back({file, key, *part, {}});
      keys.emplace(key, TensorInfo{tensor.dtype(), part->shape});
      mine.push_back(name);
    }
    index.tensors.emplace(name, std::move(indexed));
  }
  if (!keys.empty()) {
    const std::string path = (fs::path(folder) / file).string();
    SafetensorsWriter writer(path, keys);
    for (const std::string& name : mine) {
      const Tensor packed = packed_of(state.tensors.at(name));
      StoredPart& part = index.tensors.at(name).parts.front();
      part.hashes = checked_hashes(name, packed, options);
      writer.write(part.key, packed);
    }
    writer.finish();
    index.files.emplace(file, StoredFile{writer.file_bytes(), header_hash(MappedFile(path))});
  }
  return index;
}

/// Rank 0: puts the ranks' reports together, checks them, and gives the folder its name.
void commit(const std::string& temporary, const std::string& folder,
            const std::vector<std::string>& reports, const StateDict& state,
            const std::string& meta_data) {
  CheckpointIndex whole;
  for (const std::string& report : reports) {
    merge(whole, index_from_json(report, folder), folder);
  }
  whole.scalars = state.scalars;
  whole.meta = meta_data;
  check_coverage(whole, folder);
  const std::string text = to_json(whole);
  OutputFile out((fs::path(temporary) / index_name).string());
  out.write(0, std::as_bytes(std::span(text)));
  out.finish();
  sync_folder(temporary);
  put_in_place(temporary, folder);
}

/// A folder that is removed with the object, unless it was renamed.
struct Temporary {
  std::string path;
  std::unique_ptr<FolderLock> lock;
  Temporary() = default;
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!path.empty()) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  }
};

}  // namespace
}  // namespace checkpoint_detail

std::optional<std::string> first_not_finite(const StateDict& state) {
  using namespace checkpoint_detail;
  for (const auto& [name, tensor] : state.tensors) {
    if (is_floating(tensor.dtype()) && !all_finite(bytes_of(packed_of(tensor)), tensor.dtype())) {
      return name;
    }
  }
  return std::nullopt;
}

void save_checkpoint(const std::string& folder, const StateDict& state,
                     const std::string& meta_data, const SaveOptions& options) {
  using namespace checkpoint_detail;
  collective::World& world = collective::World::current();
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  collective::Communicator& group = world.communicator(ranks, "checkpoint");
  const int rank = world.rank();
  Temporary mine;  // rank 0's only
  act_together(group, [&] {
    if (current_rank() != rank) {
      fail({.thing = "checkpoint",
            .wrong = "this thread acts as the wrong rank",
            .expected = fmt::format("{} as in its world", rank),
            .got = fmt::format("{}", current_rank()),
            .advice = fmt::format(
                "save from the thread in which launch, join_launch or run_threads runs the rank, "
                "or call set_current_rank({}) in this thread before anything else",
                rank)});
    }
    if (rank == 0) {
      const std::string parent = parent_of(folder);
      std::filesystem::create_directories(parent);
      check_target(folder);
      remove_leftovers(parent);
      mine.path = make_temporary(folder);
      mine.lock = std::make_unique<FolderLock>(mine.path);
    }
  });
  const std::string temporary = broadcast_text(group, mine.path);
  std::string report;
  act_together(group, [&] { report = to_json(write_shards(temporary, state, rank, options)); });
  const std::vector<std::string> reports = gather_texts(group, report);
  act_together(group, [&] {
    if (rank == 0) {
      commit(temporary, folder, reports, state, meta_data);
      mine.path.clear();
    }
  });
}

}  // namespace tessera
