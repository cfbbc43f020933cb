module;
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;
import tessera.runs;
import tessera.app.base;
import tessera.app.commands;
import :bench_rows;

// Plans a checkpoint of 70 B parameters with AdamW's state on 512 ranks, which no machine at hand
// has. Values are neither written nor read: the files have holes.
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

/// Names and shapes of the parameters.
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

nlohmann::ordered_json row(const std::string& name, const Layout& vectors, const Layout& matrices,
                           const std::filesystem::path& folder) {
  const std::map<std::string, SimulatedTensor> tensors = llama_state(
      {.dim = 8192, .ffn = 28672, .vocab = 128256, .layers = 80, .groups = 8}, vectors, matrices);
  double bytes = 0;
  for (const auto& [name_of, tensor] : tensors) {
    bytes += 4 * static_cast<double>(tensor.info.shape.product());
  }
  const std::string path = (folder / name).string();
  const double save = runs::seconds_of([&] { save_without_data(path, tensors, ranks); });
  const double load = runs::seconds_of([&] {
    for (int rank = 0; rank < ranks; ++rank) {
      find_parts(path, tensors, rank);
    }
  });
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

std::map<std::string, SimulatedTensor> llama_state(const LlamaSizes& sizes, const Layout& vectors,
                                                   const Layout& matrices) {
  std::map<std::string, SimulatedTensor> tensors;
  for (const auto& [name, shape] : llama_shapes(sizes)) {
    for (const char* kind : {"model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
      tensors[kind + name] = {{DType::f32, shape}, shape.size() == 1 ? vectors : matrices};
    }
  }
  return tensors;
}

void find_parts(const std::string& checkpoint, const std::map<std::string, SimulatedTensor>& wanted,
                int rank) {
  const CheckpointReader reader(checkpoint, OpenFiles::when_read);
  for (const auto& [name, tensor] : wanted) {
    reader.locate(name, local_part(tensor.info.shape, tensor.layout, rank));
  }
}

nlohmann::ordered_json bench_checkpoint(const BenchArguments& /*arguments*/) {
  const ScratchFolder folder("bench");
  const DeviceMesh line = DeviceMesh::make({"shard"}, {ranks});
  const DeviceMesh square = DeviceMesh::make({"shard", "tensor"}, {ranks / 8, 8});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  rows.push_back(row("70 B, FSDP 512", Layout::make(line, {Shard(0)}),
                     Layout::make(line, {Shard(0)}), folder.path()));
  rows.push_back(row("70 B, FSDP 64 x TP 8", Layout::make(square, {Shard(0), Replicate()}),
                     Layout::make(square, {Shard(0), Shard(0)}, {1, 0}), folder.path()));
  return rows;
}

}  // namespace tessera::app
