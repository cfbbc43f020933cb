module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.app.base;
import :pack_runs;

namespace tessera::app::first_day {
namespace {

namespace fs = std::filesystem;

/// The line of an output that says what went wrong.
std::string reason_in(const std::string& output) {
  std::istringstream lines(output);
  std::string last = "it printed nothing";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("error: ")) {
      return line;
    }
    last = line.empty() || line.starts_with("warning:") ? last : line;
  }
  return last;
}

}  // namespace

ProgramOutcome run_words(const std::vector<std::string>& words, double seconds) {
  std::vector<std::string> bound = {fs::read_symlink("/proc/self/exe").string(), "bound"};
  bound.insert(bound.end(), words.begin(), words.end());
  constexpr double never = 1e9;
  const ProgramResult result = tessera::run_program(bound, Patience(seconds, never), words[0], "");
  ProgramOutcome ran{
      .code = result.code, .late = result.late, .output = result.output, .problem = ""};
  if (result.late) {
    ran.problem = fmt::format("it did not end within {:.0f} s", seconds);
  } else if (result.code > 128) {
    ran.problem =
        fmt::format("signal {} ended it: {}", result.code - 128, reason_in(result.output));
  } else if (result.code != 0) {
    ran.problem = fmt::format("status {}: {}", result.code, reason_in(result.output));
  }
  return ran;
}

Steps train(const MachineSetup& here, const std::string& name, std::vector<std::string> words,
            int steps, double seconds) {
  const std::string metrics = here.scratch + "/" + name + ".jsonl";
  std::error_code ignored;
  fs::remove(metrics, ignored);
  words.insert(words.begin() + 1, {fmt::format("train.steps={}", steps), "optimizer.warmup=1",
                                   "checkpoint.folder=", "log.sample=0", "log.metrics=" + metrics});
  words.insert(words.begin(), {here.pack.program(), "train"});
  Steps found{.ran = run_words(words, seconds), .values = {}, .rates = {}};
  const auto bytes = fs::file_size(metrics, ignored);
  std::istringstream lines(ignored || bytes == 0 ? "" : read_input(metrics));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json step = parse_json(line, false);
    if (!step.is_object() || !step.contains("loss")) {
      continue;
    }
    const auto number = [&](const char* key) {
      return step.contains(key) && step[key].is_number() ? step[key].get<double>()
                                                         : std::numeric_limits<double>::quiet_NaN();
    };
    found.values.emplace_back(number("loss"), number("grad_norm"));
    found.rates.push_back(number("tokens_per_second"));
    if (step.contains("memory_peaks")) {
      found.peak = step["memory_peaks"].value("total", 0.0);
    }
  }
  if (found.ran.problem.empty() && found.values.size() != static_cast<std::size_t>(steps)) {
    found.ran.problem =
        fmt::format("it has written {} steps (expected {})", found.values.size(), steps);
  }
  return found;
}

double step_difference(const Steps& found, const std::vector<std::pair<double, double>>& wanted) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (found.values.size() != wanted.size()) {
    return infinity;
  }
  double largest = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (const auto& [f, w] : {std::pair(found.values[i].first, wanted[i].first),
                               std::pair(found.values[i].second, wanted[i].second)}) {
      const double difference = std::abs(f - w) / (1 + std::abs(w));
      largest = std::isfinite(difference) ? std::max(largest, difference) : infinity;
    }
  }
  return largest;
}

bool same_bits(const Steps& a, const Steps& b) { return a.values == b.values; }

const std::vector<StyleRun>& style_runs() {
  constexpr double in_f32 = 1e-4;
  constexpr double in_bf16 = 2e-2;
  static const std::vector<StyleRun> all = {{"one_rank", "", in_f32},
                                            {"bf16", "1", in_bf16},
                                            {"float8", "1", in_bf16},
                                            {"fully_sharded", "1", in_f32},
                                            {"gpt2", "1,1", in_f32},
                                            {"lora", "1", in_f32},
                                            {"qlora", "1", in_bf16},
                                            {"offload", "1", in_f32},
                                            {"loss_parallel", "2", in_f32},
                                            {"expert_parallel", "1,2", in_f32},
                                            {"shared_experts", "1,2", in_f32},
                                            {"tensor_parallel", "2", in_f32},
                                            {"context_parallel", "2", in_f32},
                                            {"pipeline", "1,2", in_f32},
                                            {"data_parallel", "2", in_f32},
                                            {"fsdp_tensor", "2,2", in_f32},
                                            {"hybrid", "2,2", in_f32},
                                            {"replicated", "2", in_f32},
                                            {"sequence_parallel", "2", in_f32},
                                            {"three_d", "1,2,2", in_f32}};
  return all;
}

int style_steps(const MachineSetup& here) { return here.small ? 3 : 8; }

std::vector<std::string> style_words(const MachineSetup& here, const StyleRun& run) {
  const std::string config = here.pack.path("configs/" + run.name + ".toml");
  const std::string text = read_input(config);
  std::vector<std::string> words = {
      config,
      fmt::format("data.text=[\"{}\"]", here.pack.path("text/squares.txt")),
      "data.validation=0",
      "checkpoint.every=0",
      "model.layers=2",
      fmt::format("model.dim={}", here.small ? 64 : 128),
      fmt::format("data.seq_len={}", here.small ? 12 : 64),
      "train.batch=4"};
  if (text.find("\nffn_dim") != std::string::npos) {
    words.push_back(fmt::format("model.ffn_dim={}", here.small ? 64 : 192));
  }
  if (text.find("\nvocab") != std::string::npos) {
    words.emplace_back("model.vocab=256");
  }
  if (!run.mesh.empty()) {
    words.push_back(fmt::format("mesh.shape=[{}]", run.mesh));
  }
  if (run.name == "offload") {
    words.push_back(fmt::format("parallel[0].options.folder={}", here.scratch + "/offload"));
  }
  return words;
}

std::vector<std::string> gpu_words(const MachineSetup& here, const StyleRun& run) {
  std::vector<std::string> words = style_words(here, run);
  words.emplace_back("train.device=cuda:0");
  if (run.mesh.find('2') != std::string::npos) {
    words.emplace_back("mesh.device_collectives=host");
  }
  return words;
}

const std::vector<ModelRun>& model_runs() {
  // Tokens in a second on one H100: LLM.Q (github.com/IST-DASLab/llmq, README of 00ea1be).
  static const std::vector<ModelRun> all = {{"qwen_1.5b", 35, 58000},
                                            {"qwen_7b", 55, 14000},
                                            {"qwen_7b_float8", 55, 18000},
                                            {"llama_8b", 60, 0},
                                            {"llama_8b_float8", 60, 0}};
  return all;
}

std::vector<std::string> model_words(const MachineSetup& here, const ModelRun& run) {
  std::vector<std::string> words = {
      here.pack.path("configs/gpu/" + run.name + ".toml"),
      fmt::format("data.tokens=[\"{}\"]", here.pack.path("text/tokens.npy"))};
  if (here.small) {
    words.insert(words.end(), {"model.dim=64", "model.layers=2", "model.heads=4",
                               "model.kv_heads=2", "model.ffn_dim=96", "model.vocab=512",
                               "data.seq_len=16", "train.batch=4", "train.micro_batch=2"});
  }
  return words;
}

}  // namespace tessera::app::first_day
