module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.stores;
import tessera.tensor;
import :checkpoint_index;
import :chunks;
import :group_actions;
import :job;
import :save;
import :save_plan;
import :store_job;
import :store_place;

namespace tessera::checkpoint_detail {
namespace {

/// What one rank writes of its group's file, as a file of its own. `values` are those of the job,
/// in the order of its parts.
struct OwnFile {
  CheckpointFile file;
  std::vector<Tensor> values;
};

OwnFile own_file(const SaveJob& job, const SaveAttempt& attempt, int rank) {
  OwnFile own{{attempt.file_name(rank), job.file.ranks, {}}, {}};
  std::uint64_t at = 0;
  for (const auto& [i, values] : job.values) {
    FilePart part = job.file.parts[i];
    part.begin = at;
    at += part.bytes();
    own.file.parts.push_back(std::move(part));
    own.values.push_back(values);
  }
  return own;
}

/// Acts on every rank. If a rank's error is one of the store, all ranks throw CheckpointRefusal.
void act_in_store(collective::Communicator& group, const std::function<void()>& act) {
  std::int32_t refused = 0;
  try {
    act_together(group, [&] {
      try {
        act();
      } catch (const stores::StoreError&) {
        refused = 1;
        throw;
      }
    });
  } catch (const collective::PeerFailed&) {
    throw;
  } catch (const Error& error) {  // on all ranks
    std::int32_t any = refused;
    group.all_reduce(&refused, &any, 1, DType::i32, ReduceOp::max);
    if (any != 0) {
      throw CheckpointRefusal(error.fields(), error.kind());
    }
    throw;
  }
}

/// The index must not name what is not there: a store may say that it has an object which it lost.
void check_files(stores::OpenStore& store, const std::map<std::string, StoredFile>& files) {
  std::map<std::string, std::uint64_t> there;
  for (const stores::ListedObject& object : store.list()) {
    there.emplace(object.name, object.facts.size);
  }
  for (const auto& [name, file] : files) {
    const auto found = there.find(name);
    if (found == there.end() || found->second != file.bytes) {
      throw stores::StoreError(
          stores::StoreFailure::wrong_answer,
          {.thing = (store.address() / name).text(),
           .wrong = "the store does not have what was written",
           .expected = fmt::format("{} bytes", file.bytes),
           .got = found == there.end() ? "nothing" : fmt::format("{}", found->second)});
    }
  }
}

/// The files of the checkpoint that an index at this place names; none where there is no checkpoint
/// or it cannot be read.
std::set<std::string> replaced_files(stores::OpenStore& store) {
  constexpr std::size_t largest = std::size_t{1} << 30;
  std::set<std::string> files;
  try {
    static_cast<void>(store.facts(index_name));
  } catch (const stores::StoreError& error) {
    if (error.failure() == stores::StoreFailure::not_there) {
      return files;
    }
    throw;
  }
  try {
    const CheckpointIndex index =
        index_from_json(store.text(index_name, largest), store.address().text());
    for (const auto& [name, file] : index.files) {
      files.insert(name);
    }
  } catch (const stores::StoreError&) {
    throw;
  } catch (const Error& error) {
    log(LogLevel::warning,
        fmt::format("checkpoint: one that cannot be read is replaced ({})", error.what()));
  }
  return files;
}

}  // namespace

StoredFile send_file(stores::OpenWritableStore& store, const CheckpointFile& file,
                     const std::vector<std::vector<std::string>>& hashes,
                     const std::function<Tensor(std::size_t part)>& values) {
  const std::string header = header_of(file, hashes);
  const FilePart& last = file.parts.back();
  const std::uint64_t bytes = header.size() + last.begin + last.bytes();
  stores::Upload upload = store.upload(file.name, bytes);
  upload.add(std::as_bytes(std::span(header)));
  for (std::size_t i = 0; i < file.parts.size(); ++i) {
    const Tensor ready = values(i);
    upload.add(bytes_of(ready));
  }
  upload.complete();
  return {bytes, content_hash(std::as_bytes(std::span(header))), file.ranks};
}

void send_index(stores::OpenWritableStore& store, const CheckpointIndex& index) {
  const std::string text = to_json(index);
  const std::set<std::string> replaced = replaced_files(store);
  check_files(store, index.files);
  store.put(index_name, std::as_bytes(std::span(text)));
  for (const std::string& name : replaced) {
    if (!index.files.contains(name)) {
      try {
        store.remove(name);
      } catch (const stores::StoreError& error) {
        log(LogLevel::warning,
            fmt::format("checkpoint: a file of the one that was replaced stays: {}", error.what()));
      }
    }
  }
}

void run_store_job(collective::Communicator& group, const SaveJob& job,
                   const stores::Address& place) {
  const int rank = group.rank();
  const SaveAttempt attempt(
      broadcast_text(group, rank == 0 ? SaveAttempt().text() : std::string()));
  std::string report = to_json(CheckpointIndex{});
  act_in_store(group, [&] {
    OwnFile own = own_file(job, attempt, rank);
    if (own.values.empty()) {
      return;
    }
    std::vector<std::vector<std::string>> hashes;
    for (std::size_t i = 0; i < own.values.size(); ++i) {
      hashes.push_back(checked_hashes(own.file.parts[i].name, packed(own.values[i]), job.options));
    }
    stores::OpenWritableStore store(place);
    CheckpointIndex index;
    index.files.emplace(own.file.name, send_file(store, own.file, hashes, [&](std::size_t i) {
                          return packed(own.values[i]);
                        }));
    report = to_json(index);
  });
  const std::vector<std::string> reports = gather_texts(group, report);
  act_in_store(group, [&] {
    if (rank == 0) {
      stores::OpenWritableStore store(place);
      send_index(store, whole_index(job, reports));
    }
  });
}

}  // namespace tessera::checkpoint_detail
