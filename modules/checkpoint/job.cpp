module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
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
import :job;
import :place;
import :together;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;

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
CheckpointIndex write_shards(const std::string& folder, const SaveJob& job, int rank) {
  CheckpointIndex index;
  const std::string file = fmt::format("rank-{}.safetensors", rank);
  std::map<std::string, TensorInfo> keys;
  for (const auto& [name, tensor] : job.tensors) {
    IndexedTensor indexed{tensor.info, tensor.layout, {}};
    if (tensor.own) {
      const std::string key = fmt::format("{}@{}", name, fmt::join(tensor.own->offset.span(), ","));
      indexed.parts.push_back({file, key, *tensor.own, {}});
      keys.emplace(key, TensorInfo{tensor.info.dtype, tensor.own->shape});
    }
    index.tensors.emplace(name, std::move(indexed));
  }
  if (!keys.empty()) {
    const std::string path = (fs::path(folder) / file).string();
    SafetensorsWriter writer(path, keys);
    for (const auto& [name, tensor] : job.tensors) {
      if (tensor.own) {
        const Tensor values = packed(tensor.values);
        StoredPart& part = index.tensors.at(name).parts.front();
        part.hashes = checked_hashes(name, values, job.options);
        writer.write(part.key, values);
      }
    }
    writer.finish();
    index.files.emplace(file, StoredFile{writer.file_bytes(), header_hash(MappedFile(path))});
  }
  return index;
}

/// Rank 0: puts the ranks' reports together, checks them, and gives the folder its name.
void commit(TemporaryFolder& temporary, const SaveJob& job,
            const std::vector<std::string>& reports) {
  CheckpointIndex whole;
  for (const std::string& report : reports) {
    merge(whole, index_from_json(report, job.folder), job.folder);
  }
  whole.scalars = job.scalars;
  whole.meta = job.meta_data;
  check_coverage(whole, job.folder);
  const std::string text = to_json(whole);
  OutputFile out((fs::path(temporary.path()) / index_name).string());
  out.write(0, std::as_bytes(std::span(text)));
  out.finish();
  temporary.put_in_place(job.folder);
}

void check_thread(int rank) {
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
}

}  // namespace

std::optional<LocalPart> part_to_write(const std::string& name, const Tensor& tensor, int rank) {
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

SaveJob make_job(const std::string& folder, const StateDict& state, const std::string& meta_data,
                 const SaveOptions& options, int rank) {
  check_thread(rank);
  SaveJob job{folder, {}, state.scalars, meta_data, options};
  for (const auto& [name, tensor] : state.tensors) {
    if (!tensor || tensor.is_meta()) {
      fail({.thing = "checkpoint",
            .wrong = fmt::format("tensor '{}' has no memory", name),
            .advice = "materialize the model first"});
    }
    SavedTensor saved{{tensor.dtype(), tensor.shape()}, "plain", {}, {}};
    if (tensor.is_distributed()) {
      saved.layout = to_string(tensor.layout()) + " on " + to_string(tensor.layout().mesh());
    }
    saved.own = part_to_write(name, tensor, rank);
    if (saved.own) {
      saved.values = detached(tensor.is_distributed() ? tensor.local() : tensor);
    }
    job.tensors.emplace(name, std::move(saved));
  }
  return job;
}

Tensor packed(const Tensor& tensor) { return ops::contiguous(on_host(detached(tensor))); }

std::span<const std::byte> bytes_of(const Tensor& packed) {
  return {static_cast<const std::byte*>(packed.raw_data()),
          static_cast<std::size_t>(packed.numel()) * size_of(packed.dtype())};
}

void run_job(collective::Communicator& group, const std::function<SaveJob()>& make) {
  const int rank = group.rank();
  SaveJob job;
  TemporaryFolder mine;  // rank 0's only
  act_together(group, [&] {
    job = make();
    if (rank == 0) {
      mine.make(job.folder);
    }
  });
  const std::string temporary = broadcast_text(group, mine.path());
  std::string report;
  act_together(group, [&] { report = to_json(write_shards(temporary, job, rank)); });
  const std::vector<std::string> reports = gather_texts(group, report);
  act_together(group, [&] {
    if (rank == 0) {
      commit(mine, job, reports);
    }
  });
}

}  // namespace tessera::checkpoint_detail
