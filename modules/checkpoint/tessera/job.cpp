module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../json.hpp"
#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.stores;
import tessera.tensor;
import :chunks;
import :mapped_file;
import :checkpoint_index;
import :job;
import :place;
import :save_plan;
import :group_actions;
import :store_job;
import :store_place;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;

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

void check_memory(const StateDict& state) {
  for (const auto& [name, tensor] : state.tensors) {
    if (!tensor || tensor.is_meta()) {
      fail({.thing = "checkpoint",
            .wrong = fmt::format("tensor '{}' has no memory", name),
            .advice = "materialize the model first"});
    }
  }
}

/// The tensors of all ranks. Usually all have the same, which a hash says.
/// Where they do not (stages of a model), `scalars` gets those that only other ranks have; of one
/// that several have, the first one's.
IndexedTensors agreed(collective::Communicator& group, IndexedTensors own,
                      std::map<std::string, StateDict::Scalar>& scalars,
                      const std::string& folder) {
  CheckpointIndex index;
  index.tensors = own;
  const std::string text = to_json(index);
  std::string hash = content_hash(std::as_bytes(std::span(text)));
  std::string hashes(hash.size() * static_cast<std::size_t>(group.size()), '\0');
  group.all_gather(hash.data(), hashes.data(), static_cast<std::int64_t>(hash.size()), DType::u8);
  bool same = true;
  for (std::size_t at = 0; at < hashes.size(); at += hash.size()) {
    same = same && hashes.compare(at, hash.size(), hash) == 0;
  }
  const int size = group.size();
  const auto beyond = [&](const auto& tensor) {
    return tensor.second.layout && std::ranges::max(tensor.second.layout.mesh().ranks()) >= size;
  };
  if (same && !std::ranges::any_of(own, beyond)) {
    return own;
  }
  index.scalars = scalars;
  const std::vector<std::string> texts = gather_texts(group, to_json(index));
  const std::string all = broadcast_text(group, json_text(nlohmann::json(texts)));
  std::vector<IndexedTensors> of_ranks;
  std::map<std::string, StateDict::Scalar> joined;
  for (const auto& one : parse_json(all)) {
    CheckpointIndex of_rank = index_from_json(one.get<std::string>(), folder);
    of_ranks.push_back(std::move(of_rank.tensors));
    joined.merge(of_rank.scalars);
  }
  scalars = std::move(joined);
  return merged(of_ranks, folder);
}

/// A box of what this rank holds of a tensor, as a tensor of its own that shares its memory.
Tensor values_of(const Tensor& tensor, const LocalPart& box, int rank) {
  const Tensor local = detached(local_of(tensor));
  const Dims begin = tensor.is_distributed()
                         ? local_part(tensor.shape(), tensor.layout(), rank).offset
                         : Dims::filled(tensor.dims(), 0);
  std::int64_t offset = local.offset();
  for (const auto [first, own, stride] : ranges::views::zip(box.offset, begin, local.strides())) {
    offset += (first - own) * stride;
  }
  return alias(local, box.shape, local.strides(), offset);
}

using Hashes = std::vector<std::vector<std::string>>;  // of each part of a file

/// A file while it is written.
struct OpenFile {
  std::unique_ptr<OutputFile> file;  // of its first rank, until the header is written
  Hashes hashes;
};

/// Writes this rank's parts. They are on the disk when it returns, but for those of the file's
/// first rank: its header comes afterwards.
OpenFile write_parts(const std::string& path, const SaveJob& job, int rank) {
  OpenFile open{nullptr, Hashes(job.file.parts.size())};
  const bool first = rank == job.file.ranks.front();
  if (job.values.empty() && (!first || job.file.parts.empty())) {
    return open;
  }
  open.file = std::make_unique<OutputFile>(path, true);
  const std::size_t data = header_bytes(job.file);
  for (const auto& [i, values] : job.values) {
    const FilePart& part = job.file.parts[i];
    const Tensor ready = packed(values);
    open.hashes[i] = checked_hashes(part.name, ready, job.options);
    open.file->write(data + part.begin, bytes_of(ready));
  }
  if (!first) {
    open.file->finish();
    open.file.reset();
  }
  return open;
}

/// The hashes of all parts of the file, on the first of its ranks.
Hashes gather_hashes(collective::Communicator& group, Hashes own, const SaveJob& job) {
  if (job.file.ranks.size() < 2) {
    return own;
  }
  collective::Communicator& writers =
      collective::World::current().communicator(job.file.ranks, group.name());
  for (const std::string& text : gather_texts(writers, json_text(nlohmann::json(own)))) {
    const auto theirs = parse_json(text).get<Hashes>();
    for (const auto [mine, other] : ranges::views::zip(own, theirs)) {
      if (!other.empty()) {
        mine = other;
      }
    }
  }
  return own;
}

/// The first of a file's ranks: what the index has to say of it.
CheckpointIndex write_header(const OpenFile& open, const SaveJob& job) {
  const std::string header = header_of(job.file, open.hashes);
  open.file->write(0, std::as_bytes(std::span(header)));
  open.file->finish();
  const FilePart& last = job.file.parts.back();
  CheckpointIndex index;
  index.files.emplace(job.file.name,
                      StoredFile{header.size() + last.begin + last.bytes(),
                                 content_hash(std::as_bytes(std::span(header))), job.file.ranks});
  return index;
}

/// Rank 0: puts the ranks' reports together, and gives the folder its name.
void commit(TemporaryFolder& temporary, const SaveJob& job,
            const std::vector<std::string>& reports) {
  write_index(temporary.path(), whole_index(job, reports));
  temporary.put_in_place(job.folder);
}

}  // namespace

IndexedTensors described(const StateDict& state) {
  IndexedTensors tensors;
  for (const auto& [name, tensor] : state.tensors) {
    const Layout layout = tensor.is_distributed() ? tensor.layout() : Layout();
    if (layout && layout.has_partial()) {
      fail({.thing = "checkpoint",
            .wrong = fmt::format("tensor '{}' is {}: its ranks hold partial values", name,
                                 to_string(layout)),
            .advice = "redistribute it first"});
    }
    tensors.emplace(name, IndexedTensor{{tensor.dtype(), tensor.shape()}, layout});
  }
  return tensors;
}

SaveJob make_job(collective::Communicator& group, const std::string& folder, const StateDict& state,
                 const std::string& meta_data, const SaveOptions& options) {
  const int rank = group.rank();
  StateDict stored;
  IndexedTensors own;
  act_together(group, [&] {
    check_thread(rank);
    check_memory(state);
    stored = stored_part(state, options.base);
    own = described(stored);
  });
  SaveJob job{folder, {}, {}, {}, {}, stored.scalars, meta_data, options};
  job.tensors = agreed(group, std::move(own), job.scalars, folder);
  job.groups = file_groups(job.tensors, group.size());
  const auto mine = std::ranges::find_if(job.groups, [&](const std::vector<int>& ranks) {
    return std::ranges::find(ranks, rank) != ranks.end();
  });
  job.file = plan_file(job.tensors, *mine);
  job.values = values_to_write(job.file, stored, rank);
  return job;
}

std::map<std::size_t, Tensor> values_to_write(const CheckpointFile& file, const StateDict& state,
                                              int rank) {
  std::map<std::size_t, Tensor> values;
  for (std::size_t i = 0; i < file.parts.size(); ++i) {
    const FilePart& part = file.parts[i];
    if (part.writer == rank) {
      values.emplace(i, values_of(state.tensors.at(part.name), part.box, rank));
    }
  }
  return values;
}

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

CheckpointIndex whole_index(const SaveJob& job, const std::vector<std::string>& reports) {
  CheckpointIndex whole;
  for (const std::string& report : reports) {
    whole.files.merge(index_from_json(report, job.folder).files);
  }
  whole.tensors = job.tensors;
  whole.scalars = job.scalars;
  whole.meta = job.meta_data;
  whole.base = job.options.base;
  return whole;
}

void write_index(const std::string& temporary, const CheckpointIndex& index) {
  const std::string text = to_json(index);
  OutputFile out((fs::path(temporary) / index_name).string());
  out.write(0, std::as_bytes(std::span(text)));
  out.finish();
}

Tensor packed(const Tensor& tensor) { return ops::contiguous(on_host(detached(tensor))); }

std::span<const std::byte> bytes_of(const Tensor& packed) {
  return {static_cast<const std::byte*>(packed.raw_data()),
          static_cast<std::size_t>(packed.numel()) * size_of(packed.dtype())};
}

void run_job(collective::Communicator& group, const SaveJob& job) {
  if (const std::optional<stores::Address> place = address_of(job.folder)) {
    run_store_job(group, job, *place);
    return;
  }
  const int rank = group.rank();
  TemporaryFolder mine;  // rank 0's only
  act_together(group, [&] {
    if (rank == 0) {
      mine.make(job.folder, job.options.within);
    }
  });
  const std::string path = (fs::path(broadcast_text(group, mine.path())) / job.file.name).string();
  OpenFile open;
  act_together(group, [&] { open = write_parts(path, job, rank); });
  open.hashes = gather_hashes(group, std::move(open.hashes), job);
  std::string report = to_json(CheckpointIndex{});
  act_together(group, [&] {
    if (open.file) {
      report = to_json(write_header(open, job));
    }
  });
  const std::vector<std::string> reports = gather_texts(group, report);
  act_together(group, [&] {
    if (rank == 0) {
      commit(mine, job, reports);
    }
  });
}

}  // namespace tessera::checkpoint_detail
