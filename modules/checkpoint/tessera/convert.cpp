module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.stores;
import tessera.tensor;
import :chunks;
import :mapped_file;
import :checkpoint_index;
import :job;
import :place;
import :save_plan;
import :save;
import :store_job;
import :store_place;

namespace tessera {

void write_checkpoint(const TensorSource& from, const std::string& folder,
                      const std::string& meta_data) {
  using namespace checkpoint_detail;
  CheckpointIndex index;
  index.scalars = from.scalars();
  index.meta = meta_data;
  index.base = from.base();
  for (const auto& [name, info] : from.tensors()) {
    index.tensors.emplace(name, IndexedTensor{info, {}});
  }
  if (const std::optional<stores::Address> place = address_of(folder)) {
    stores::OpenWritableStore store(*place);
    CheckpointFile file = plan_file(index.tensors, {0});
    file.name = SaveAttempt().file_name(0);
    if (!file.parts.empty()) {
      std::vector<std::vector<std::string>> hashes;
      for (const FilePart& part : file.parts) {
        hashes.push_back(hashes_of(bytes_of(from.read(part.name))));
      }
      index.files.emplace(file.name, send_file(store, file, hashes, [&](std::size_t i) {
                            return from.read(file.parts[i].name);
                          }));
    }
    send_index(store, index);
    return;
  }
  TemporaryFolder temporary;
  temporary.make(folder);
  const CheckpointFile planned = plan_file(index.tensors, {0});
  if (!planned.parts.empty()) {
    OutputFile out((std::filesystem::path(temporary.path()) / planned.name).string());
    const std::size_t data = header_bytes(planned);
    std::vector<std::vector<std::string>> hashes;
    for (const FilePart& part : planned.parts) {
      const Tensor values = from.read(part.name);
      hashes.push_back(hashes_of(bytes_of(values)));
      out.write(data + part.begin, bytes_of(values));
    }
    const std::string header = header_of(planned, hashes);
    out.write(0, std::as_bytes(std::span(header)));
    out.finish();
    index.files.emplace(planned.name,
                        StoredFile{data + planned.parts.back().begin + planned.parts.back().bytes(),
                                   content_hash(std::as_bytes(std::span(header))),
                                   {0}});
  }
  write_index(temporary.path(), index);
  temporary.put_in_place(folder);
}

}  // namespace tessera
