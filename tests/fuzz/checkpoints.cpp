// Files of weights: headers are read, and small tensors.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "index_hash.hpp"
#include "sealed_zip.hpp"
#include "target.hpp"

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;
import tessera.exported;
import tessera.hub;

using namespace tessera;

namespace {

namespace fs = std::filesystem;

/// Reads what is small: a shape may be of many values where none is stored.
void read_all(const TensorSource& source) {
  for (const auto& [name, info] : source.tensors()) {
    static_cast<void>(source.stored_type(name));
    static_cast<void>(source.saved_layout(name));
    if (info.shape.product() <= 1 << 16) {
      static_cast<void>(source.read(name));
    }
  }
}

/// A copy of a stored folder, in which an input takes the place of one file.
std::string copy_of(const std::string& folder, const std::string& name) {
  std::string made = fuzz::folder_of(name);
  for (const auto& entry : fs::directory_iterator(TESSERA_SOURCE_DIR "/tests/" + folder)) {
    if (entry.is_regular_file()) {
      fs::copy_file(entry.path(), fs::path(made) / entry.path().filename(),
                    fs::copy_options::overwrite_existing);
    }
  }
  return made;
}

const fuzz::Target safetensors{
    "safetensors",
    [](std::string_view input) {
      read_all(SafetensorsFile(fuzz::file_of(input, "model.safetensors")));
    },
    {"tests/reference/data/nf4.safetensors",
     "tests/reference/data/adapters/lora/adapter_model.safetensors"}};

const fuzz::Target safetensors_index{
    "safetensors_index",
    [](std::string_view input) {
      static const std::string folder = copy_of("reference/data/folders/sharded_files", "sharded");
      fuzz::file_of(input, "sharded/model.safetensors.index.json");
      read_all(SafetensorsFolder(folder));
    },
    {"tests/reference/data/folders/sharded_files/model.safetensors.index.json"}};

const fuzz::Target gguf{
    "gguf",
    [](std::string_view input) {
      const auto source = checkpoint_format("gguf").open(fuzz::file_of(input, "weights.gguf"));
      read_all(*source);
      static_cast<void>(hub::gguf_config(*source));
    },
    {"tests/reference/data/gguf/types.gguf", "tests/reference/data/gguf/gemma2.gguf",
     "tests/reference/data/gguf/phi3.gguf"}};

/// A program of torch.export, with its tensors.
const fuzz::Target exported_program{
    "exported_program",
    [](std::string_view input) {
      std::string bytes(input);
      testing::seal_zip(bytes);  // else nearly every change ends at a checksum
      const auto source = checkpoint_format("pt2").open(fuzz::file_of(bytes, "model.pt2"));
      read_all(*source);
      static_cast<void>(exported::read_exported_graph(*source));
    },
    {"tests/reference/data/exported/convolutions.pt2",
     "tests/reference/data/exported/changed.pt2"}};

/// The pickle of a folder of torch.distributed.checkpoint.
const fuzz::Target torch_metadata{
    "torch_metadata",
    [](std::string_view input) {
      static const std::string folder = copy_of("reference/data/torch/two", "torch");
      fuzz::file_of(input, "torch/.metadata");
      read_all(TorchCheckpoint(folder));
    },
    {"tests/reference/data/torch/one/.metadata", "tests/reference/data/torch/two/.metadata"}};

/// A zip archive with a pickle and the bytes of tensors.
const fuzz::Target torch_file{"torch_file",
                              [](std::string_view input) {
                                static const std::string folder =
                                    copy_of("reference/data/torch/two", "torch_file");
                                fuzz::file_of(input, "torch_file/__0_0.distcp");
                                read_all(TorchCheckpoint(folder));
                              },
                              {"tests/reference/data/torch/two/__0_0.distcp"}};

/// The index of a checkpoint of ours, with the hash that it would need.
const fuzz::Target checkpoint_index{
    "checkpoint_index",
    [](std::string_view input) {
      static const std::string folder = copy_of("fuzz/corpus/checkpoint", "checkpoint");
      const std::size_t rest = input.find('\n');  // its first line has the hash
      const std::string_view body = input.substr(rest == std::string_view::npos ? 0 : rest + 1);
      fuzz::file_of("{\"hash\": \"" + index_hash::xxh3(body) + "\",\n" + std::string(body),
                    "checkpoint/checkpoint.json");
      read_all(CheckpointReader(folder));
    },
    {"tests/fuzz/corpus/checkpoint/checkpoint.json"}};

}  // namespace
