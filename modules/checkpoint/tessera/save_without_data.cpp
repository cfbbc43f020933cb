module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :mapped_file;
import :checkpoint_index;
import :job;
import :save_plan;
import :save_without_data;

namespace tessera {

namespace checkpoint_detail {
namespace {

/// Hashes of zeros, of which there are few different ones.
class ZeroHashes {
 public:
  std::vector<std::string> of(std::size_t bytes) {
    std::vector<std::string> hashes;
    for (std::size_t i = 0; i < chunks_of(bytes); ++i) {
      const std::size_t length = std::min(chunk_bytes, bytes - i * chunk_bytes);
      std::string& hash = known_[length];
      if (hash.empty()) {
        hash = content_hash(std::span(zeros_).first(length));
      }
      hashes.push_back(hash);
    }
    return hashes;
  }

 private:
  std::vector<std::byte> zeros_ = std::vector<std::byte>(chunk_bytes);
  std::map<std::size_t, std::string> known_;
};

}  // namespace
}  // namespace checkpoint_detail

void save_without_data(const std::string& folder,
                       const std::map<std::string, SimulatedTensor>& tensors, int ranks) {
  using namespace checkpoint_detail;
  namespace fs = std::filesystem;
  std::error_code problem;
  if (fs::exists(folder, problem) || !fs::create_directories(folder, problem)) {
    fail_input({.thing = folder,
                .wrong = fmt::format("the folder cannot be created ({})",
                                     problem ? problem.message() : "it exists"),
                .advice = "name another folder"});
  }
  CheckpointIndex index;
  for (const auto& [name, tensor] : tensors) {
    index.tensors.emplace(name, IndexedTensor{tensor.info, tensor.layout});
  }
  ZeroHashes zeros;
  for (const std::vector<int>& group : file_groups(index.tensors, ranks)) {
    const CheckpointFile file = plan_file(index.tensors, group);
    if (file.parts.empty()) {
      continue;
    }
    std::vector<std::vector<std::string>> hashes;
    hashes.reserve(file.parts.size());
    for (const FilePart& part : file.parts) {
      hashes.push_back(zeros.of(part.bytes()));
    }
    const std::string header = header_of(file, hashes);
    const std::string path = (fs::path(folder) / file.name).string();
    OutputFile out(path);
    out.write(0, std::as_bytes(std::span(header)));
    const std::uint64_t bytes = header.size() + file.parts.back().begin + file.parts.back().bytes();
    fs::resize_file(path, bytes);
    index.files.emplace(
        file.name, StoredFile{bytes, content_hash(std::as_bytes(std::span(header))), file.ranks});
  }
  write_index(folder, index);
}

}  // namespace tessera
