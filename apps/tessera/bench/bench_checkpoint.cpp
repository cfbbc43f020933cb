module;
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;
import :bench_rows;

// The planning of a checkpoint at a size that no machine at hand has: 70 B parameters with AdamW's
// state on 512 ranks. Everything is done but the writing and reading of values: the files have
// holes.
namespace tessera::app {
namespace {

constexpr int ranks = 512;
constexpr double seconds_allowed = 10;
constexpr double mib_allowed = 1024;

/// Peak memory of the process so far, in MiB.
double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

nlohmann::ordered_json row(const std::string& name, const Layout& vectors, const Layout& matrices,
                           const std::filesystem::path& folder) {
  std::map<std::string, SimulatedTensor> tensors;
  double bytes = 0;
  for (const auto& [name_of, shape] :
       llama_shapes({.dim = 8192, .ffn = 28672, .vocab = 128256, .layers = 80, .groups = 8})) {
    for (const char* kind : {"model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
      tensors[kind + name_of] = {{DType::f32, shape}, shape.size() == 1 ? vectors : matrices};
      bytes += 4 * static_cast<double>(shape.product());
    }
  }
  const std::string path = (folder / name).string();
  const auto start = std::chrono::steady_clock::now();
  save_without_data(path, tensors, ranks);
  const auto saved = std::chrono::steady_clock::now();
  for (int rank = 0; rank < ranks; ++rank) {  // each reads the index, and finds all its parts
    const CheckpointReader reader(path, OpenFiles::when_read);
    for (const auto& [name_of, tensor] : tensors) {
      reader.locate(name_of, local_part(tensor.info.shape, tensor.layout, rank));
    }
  }
  const auto loaded = std::chrono::steady_clock::now();
  const double save = std::chrono::duration<double>(saved - start).count();
  const double load = std::chrono::duration<double>(loaded - saved).count();
  std::filesystem::remove_all(path);
  return {{"name", name},
          {"tensors", static_cast<std::int64_t>(tensors.size())},
          {"state_gb", bytes / 1e9},
          {"save_seconds", save},
          {"load_seconds", load},
          {"share_of_10_s", (save + load) / seconds_allowed},
          {"peak_memory_mib", peak_mib()},
          {"share_of_1_gib", peak_mib() / mib_allowed}};
}

}  // namespace

std::vector<std::pair<std::string, Dims>> llama_shapes(const LlamaSizes& sizes) {
  const auto [dim, ffn, vocab, layers, groups] = sizes;
  std::vector<std::pair<std::string, Dims>> all = {
      {"embed_tokens", {vocab, dim}}, {"norm", {dim}}, {"lm_head", {vocab, dim}}};
  for (int layer = 0; layer < layers; ++layer) {
    const std::string in = "layers." + std::to_string(layer) + ".";
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, Dims>>{{"q_proj", {dim, dim}},
                                                   {"k_proj", {dim / groups, dim}},
                                                   {"v_proj", {dim / groups, dim}},
                                                   {"o_proj", {dim, dim}},
                                                   {"gate_proj", {ffn, dim}},
                                                   {"up_proj", {ffn, dim}},
                                                   {"down_proj", {dim, ffn}},
                                                   {"input_layernorm", {dim}},
                                                   {"post_attention_layernorm", {dim}}}) {
      all.emplace_back(in + name, shape);
    }
  }
  return all;
}

nlohmann::ordered_json bench_checkpoint(const BenchArguments& /*arguments*/) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("tessera-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const DeviceMesh line = DeviceMesh::make({"shard"}, {ranks});
  const DeviceMesh square = DeviceMesh::make({"shard", "tensor"}, {ranks / 8, 8});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  rows.push_back(row("70 B, FSDP 512", Layout::make(line, {Shard(0)}),
                     Layout::make(line, {Shard(0)}), folder));
  rows.push_back(row("70 B, FSDP 64 x TP 8", Layout::make(square, {Shard(0), Replicate()}),
                     Layout::make(square, {Shard(0), Shard(0)}, {1, 0}), folder));
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return rows;
}

}  // namespace tessera::app
