module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.app.base;
import :calls;
import :checks;
import :gpu_facts;
import :pack;
import :pack_runs;

namespace tessera::app::first_day {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

/// Sets a variable of the environment for the programs that start meanwhile. Only one item may
/// run.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    const char* const before = std::getenv(name);
    before_ = before == nullptr ? std::nullopt : std::optional<std::string>(before);
    setenv(name, value.c_str(), 1);
  }
  ~Setting() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

Outcome failed(std::string problem, const Json& facts = Json::object()) {
  return {.status = "failed", .problem = std::move(problem), .facts = json_text(facts)};
}

Json references(const MachineSetup& here) {
  return parse_ordered_json(read_input(here.pack.path("reference/steps.json")));
}

// ---- doctor ----

Outcome versions(const MachineSetup& here) {
  Json facts = {{"driver", cuda_version(here.gpus.driver)}, {"gpus", Json::array()}};
  for (const GpuFact& gpu : here.gpus.gpus) {
    facts["gpus"].push_back(
        {{"name", gpu.name}, {"capability", gpu.capability}, {"memory", gpu.memory}});
  }
  facts["libraries"] = here.gpus.libraries;
  facts["missing"] = Json::array();
  std::string problems;
  bool wrong = false;
  for (const LibraryProblem& one : here.gpus.problems) {
    facts["missing"].push_back(one.text);
    problems += (problems.empty() ? "" : "; ") + one.text;
    wrong = wrong || one.other_major;
  }
  return wrong ? failed(problems, facts) : Outcome{.facts = json_text(facts)};
}

Outcome doctor(const MachineSetup& here, double seconds) {
  const ProgramOutcome ran = run_words({here.pack.program(), "doctor"}, seconds);
  Outcome outcome = outcome_of(ran);
  outcome.facts = json_text(Json{{"text", ran.output.substr(0, 6000)}});
  if (ran.problem.empty() && ran.output.find("cuda (by ") == std::string::npos) {
    return failed("it names no device 'cuda'", Json{{"text", ran.output}});
  }
  return outcome;
}

// ---- styles ----

const std::map<std::string, Words>& executors() {
  static const std::map<std::string, Words> all = {
      {"eager", {}},
      {"planned", {"graph.capture=true", "graph.executor=planned"}},
      {"graphs", {"graph.capture=true", "graph.executor=planned", "graph.device_graphs=true"}},
      {"compiled", {"graph.capture=true", "graph.executor=compiled"}}};
  return all;
}

Words on_gpu(const MachineSetup& here, const StyleRun& run, const std::string& executor) {
  Words words = gpu_words(here, run);
  words.insert(words.end(), executors().at(executor).begin(), executors().at(executor).end());
  return words;
}

Outcome style(const MachineSetup& here, const StyleRun& run, const std::string& executor,
              double seconds) {
  if (executor == "compiled" && !here.gpus.has_library("libnvrtc.so")) {
    return {.status = "absent", .problem = "NVRTC's library is not there"};
  }
  const Json stored = references(here);
  const auto wanted = stored["styles"][run.name].get<std::vector<std::pair<double, double>>>();
  const Steps found = train(here, "style-" + run.name + "-" + executor, on_gpu(here, run, executor),
                            style_steps(here), seconds);
  if (!found.ran.problem.empty()) {
    return outcome_of(found.ran);
  }
  const double difference = step_difference(found, wanted);
  const Json facts = {
      {"difference", difference}, {"tolerance", run.tolerance}, {"steps", wanted.size()}};
  return difference <= run.tolerance
             ? Outcome{.facts = json_text(facts)}
             : failed(
                   fmt::format("losses or norms differ from the CPU's by {:.3g} (at most {:.0e})",
                               difference, run.tolerance),
                   facts);
}

std::vector<Item> style_items(const MachineSetup& here) {
  std::vector<Item> items;
  for (const StyleRun& run : style_runs()) {
    for (const char* executor : {"eager", "planned", "graphs"}) {
      items.push_back({.name = fmt::format("{} {}", run.name, executor),
                       .seconds = 20,
                       .run = [&here, run, executor = std::string(executor)](double seconds) {
                         return style(here, run, executor, seconds);
                       }});
    }
  }
  return items;
}

// ---- rates ----

Outcome rates(const MachineSetup& here, const std::string& only, bool best, double seconds) {
  std::optional<Setting> setting;
  if (best) {
    setting.emplace("TESSERA_CUDA_PRODUCTS", "measured");
  }
  const ProgramOutcome ran = run_words(
      {here.pack.path("bin/tessera-tools"), "bench", "device", "--device", "cuda:0", "--json",
       "--elements", std::to_string(here.small ? 1 << 14 : 1 << 24), "--only", only},
      seconds);
  if (!ran.problem.empty()) {
    return outcome_of(ran);
  }
  const std::size_t begin = ran.output.find("[\n");
  const Json rows = parse_ordered_json(ran.output.substr(begin == std::string::npos ? 0 : begin));
  std::string far;
  for (const Json& row : rows) {
    const double tolerance = row["name"].get<std::string>().ends_with("bf16") ? 1e-2 : 1e-4;
    if (row.contains("deviation") &&
        !(row["deviation"].is_number() && row["deviation"].get<double>() <= tolerance)) {
      far += fmt::format("{}{} is {} from the CPU's result", far.empty() ? "" : "; ",
                         row["name"].get<std::string>(), json_text(row["deviation"]));
    }
  }
  const Json facts = {{"rows", rows}};
  return far.empty() ? Outcome{.facts = json_text(facts)} : failed(far, facts);
}

std::vector<Item> rate_items(const MachineSetup& here) {
  // By texts in the names of rows: products first, as they are most of a step.
  const std::vector<std::pair<std::string, std::string>> groups = {
      {"copies", "copy"},
      {"linear", "linear "},
      {"gradients of inputs", "linear_grad_input"},
      {"gradients of weights", "linear_grad_weight"},
      {"attention", "causal_attention"},
      {"norms", "norm"},
      {"swiglu", "swiglu"},
      {"rotary", "rotary"},
      {"loss", "cross_entropy"},
      {"embedding", "embedding"},
      {"casts", "cast"},
      {"sums", "sum"},
      {"additions", "add"},
      {"softmax", "softmax"},
      {"small work", "a small kernel"}};
  std::vector<Item> items;
  for (const auto& [name, only] : groups) {
    items.push_back({.name = name, .seconds = 15, .run = [&here, text = only](double seconds) {
                       return rates(here, text, false, seconds);
                     }});
  }
  items.push_back(
      {.name = "linear, best of 8 algorithms", .seconds = 20, .run = [&here](double seconds) {
         return rates(here, "linear", true, seconds);
       }});
  return items;
}

// ---- models ----

/// Why the model does not fit into the memory that is free; empty: it does, or nobody knows.
std::string too_little_memory(const Json& planned) {
  const auto memory = device_memory(find_device("cuda:0"));
  const double needed = planned["peak_bytes"];
  if (!memory || needed <= static_cast<double>(memory->free)) {
    return "";
  }
  return fmt::format("too little memory: it needs {}, {} of {} are free",
                     format_bytes(static_cast<std::uint64_t>(needed)), format_bytes(memory->free),
                     format_bytes(memory->total));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

Outcome model_steps(const MachineSetup& here, const ModelRun& run, double seconds) {
  const Json planned = references(here)["models"][run.name];
  if (const std::string why = too_little_memory(planned); !why.empty()) {
    return {.status = "absent", .problem = why};
  }
  constexpr int steps = 4;
  Words words = model_words(here, run);
  words.emplace_back("train.device=cuda");
  const Steps found = train(here, "model-" + run.name, words, steps, seconds);
  Json facts = {{"bound_tokens_per_second", planned["tokens_per_second"]},
                {"planned_bytes", planned["peak_bytes"]},
                {"peak_bytes", found.peak},
                {"steps", found.rates.size()}};
  if (planned.contains("expected_tokens_per_second")) {
    facts["expected_tokens_per_second"] = planned["expected_tokens_per_second"];
  }
  if (run.published > 0) {
    facts["published_tokens_per_second"] = run.published;
  }
  if (!found.values.empty()) {
    facts["losses"] = Json::array();
    for (const auto& [loss, norm] : found.values) {
      facts["losses"].push_back(loss);
    }
    // The first step prepares; what a limit has cut off is still a rate.
    facts["tokens_per_second"] =
        median({found.rates.begin() + (found.rates.size() > 1 ? 1 : 0), found.rates.end()});
  }
  if (!found.ran.problem.empty()) {
    return {.status = found.ran.late ? "late" : "failed",
            .problem = found.ran.problem,
            .facts = json_text(facts)};
  }
  const double plan = planned["peak_bytes"];
  constexpr double workspace = 1 << 25;  // of cuBLASLt, which the plan is without
  if (!here.small && (found.peak > 1.05 * plan + workspace || found.peak < 0.5 * plan)) {
    return failed(
        fmt::format("its tensors hold {:.0f} bytes, {:.0f} were planned", found.peak, plan), facts);
  }
  return {.facts = json_text(facts)};
}

/// Each operator's time in a step, beside what it should be.
Outcome model_operators(const MachineSetup& here, const ModelRun& run, double seconds) {
  const Json planned = references(here)["models"][run.name];
  if (const std::string why = too_little_memory(planned); !why.empty()) {
    return {.status = "absent", .problem = why};
  }
  const ProgramOutcome ran = run_words(
      {here.pack.path("bin/tessera-tools"), "graph", "roofline",
       here.pack.path("reference/" + run.name + ".step"), "--measure", "cuda:0", "--json"},
      seconds);
  if (!ran.problem.empty()) {
    return outcome_of(ran);
  }
  const std::size_t begin = ran.output.find("{\n");
  Json bound = parse_ordered_json(ran.output.substr(begin == std::string::npos ? 0 : begin));
  Json facts = {{"tokens", bound["tokens"]},
                {"measured_seconds", bound["measured_seconds"]},
                {"seconds", bound["seconds"]},
                {"operators", Json::array()}};
  for (Json& one : bound["operators"]) {
    one.erase("flops");
    one.erase("bytes");
    facts["operators"].push_back(one);
  }
  return {.facts = json_text(facts)};
}

Item model_item(const MachineSetup& here, const ModelRun& run) {
  return {.name = run.name, .seconds = run.seconds, .run = [&here, run](double seconds) {
            return model_steps(here, run, seconds);
          }};
}

Item model_operators_item(const MachineSetup& here, const ModelRun& run) {
  return {.name = run.name + ", by operator", .seconds = 30, .run = [&here, run](double seconds) {
            return model_operators(here, run, seconds);
          }};
}

std::vector<Item> model_items(const MachineSetup& here) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < 3; ++i) {
    items.push_back(model_item(here, model_runs()[i]));
    items.push_back(model_operators_item(here, model_runs()[i]));
  }
  return items;
}

// ---- more ----

/// All kernels, also on operands with gaps, against this machine's CPU.
Outcome plugin_check(const MachineSetup& here, double seconds) {
  const ProgramOutcome ran =
      run_words({here.pack.path("bin/tessera-tools"), "plugin", "check", "--deviations",
                 here.pack.path("lib/tessera/plugins/cuda.so")},
                seconds);
  Outcome outcome = outcome_of(ran);
  if (outcome.status == "failed") {
    const std::size_t place = ran.output.find("failed:");
    outcome.problem += place == std::string::npos ? "" : "; " + ran.output.substr(place, 1000);
  }
  return outcome;
}

Outcome twice(const MachineSetup& here, const StyleRun& run, const std::string& executor,
              double seconds) {
  Steps found[2];
  for (Steps& one : found) {
    one = train(here, "twice", on_gpu(here, run, executor), style_steps(here), seconds / 2);
    if (!one.ran.problem.empty()) {
      return outcome_of(one.ran);
    }
  }
  return same_bits(found[0], found[1]) ? Outcome{} : failed("two runs have other bits");
}

Outcome attention(const MachineSetup& here, double seconds) {
  const StyleRun& run = style_runs()[1];  // in bf16
  Steps found[2];
  const char* const by[2] = {"own", "auto"};
  for (int i = 0; i < 2; ++i) {
    const Setting setting("TESSERA_CUDA_ATTENTION", by[i]);
    found[i] = train(here, std::string("attention-") + by[i], on_gpu(here, run, "eager"),
                     style_steps(here), seconds / 2);
    if (!found[i].ran.problem.empty()) {
      return outcome_of(found[i].ran);
    }
  }
  const double difference = step_difference(found[1], found[0].values);
  const Json facts = {{"difference", difference}};
  return difference <= run.tolerance
             ? Outcome{.facts = json_text(facts)}
             : failed(fmt::format("losses by cuDNN differ from our own by {:.3g}", difference),
                      facts);
}

/// What cuDNN says of the device, for tests/cuda/devices.
Outcome cudnn_device(const MachineSetup& here, double seconds) {
  const std::string file = here.scratch + "/cudnn_device.json";
  const Setting description("TESSERA_CUDA_DNN_DEVICE", file);
  const ProgramOutcome ran =
      run_words({here.pack.path("bin/tessera-tools"), "bench", "device", "--device", "cuda:0",
                 "--json", "--elements", std::to_string(1 << 14), "--only", "causal_attention"},
                seconds);
  if (!ran.problem.empty()) {
    return outcome_of(ran);
  }
  if (!std::filesystem::exists(file)) {
    return {.status = "absent", .problem = "cuDNN 9.16 or later is not there"};
  }
  return {.facts = json_text(Json{{"device", parse_json(read_input(file))}})};
}

std::vector<Item> more_items(const MachineSetup& here) {
  std::vector<Item> items = {
      {.name = "plugin check",
       .seconds = 240,
       .run = [&here](double seconds) { return plugin_check(here, seconds); }},
      {.name = "attention by cuDNN and our own",
       .seconds = 30,
       .run = [&here](double seconds) { return attention(here, seconds); }},
      {.name = "cuDNN's device", .seconds = 20, .run = [&here](double seconds) {
         return cudnn_device(here, seconds);
       }}};
  for (std::size_t i : {0U, 1U, 2U}) {
    const StyleRun run = style_runs()[i];
    for (const char* executor : {"eager", "planned", "graphs"}) {
      items.push_back({.name = fmt::format("{} {}, twice", run.name, executor),
                       .seconds = 40,
                       .run = [&here, run, executor = std::string(executor)](double seconds) {
                         return twice(here, run, executor, seconds);
                       }});
    }
    items.push_back(
        {.name = run.name + " compiled", .seconds = 40, .run = [&here, run](double seconds) {
           return style(here, run, "compiled", seconds);
         }});
  }
  for (std::size_t i = 3; i < model_runs().size(); ++i) {
    items.push_back(model_item(here, model_runs()[i]));
    items.push_back(model_operators_item(here, model_runs()[i]));
  }
  return items;
}

}  // namespace

Outcome outcome_of(const ProgramOutcome& ran) {
  return ran.problem.empty()
             ? Outcome{}
             : Outcome{.status = ran.late ? "late" : "failed", .problem = ran.problem};
}

std::vector<Part> parts_of(const MachineSetup& here) {
  const StoredCalls calls(here.pack.path("reference/operators.safetensors"),
                          find_device("cuda:0").type);
  std::vector<Item> operators;
  for (const std::string& name : calls.operators()) {
    operators.push_back({.name = name, .seconds = 10});
  }
  constexpr int cores_of_run = 4;
  return {{.name = "doctor",
           .about = "versions and libraries",
           .seconds = 10,
           .items = {{.name = "versions",
                      .seconds = 10,
                      .run = [&here](double) { return versions(here); }},
                     {.name = "doctor",
                      .seconds = 10,
                      .run = [&here](double seconds) { return doctor(here, seconds); }}}},
          {.name = "operators",
           .about = "each operator against stored results of the CPU",
           .seconds = 60,
           .items = std::move(operators)},
          {.name = "styles",
           .about = "a small run of each style against the CPU's losses",
           .seconds = 60,
           .together = std::clamp(available_cores() / cores_of_run, 1, 6),
           .items = style_items(here)},
          {.name = "rates",
           .about = "rates of operators beside the memory's",
           .seconds = 60,
           .items = rate_items(here)},
          {.name = "models",
           .about = "1.5B and 7B, by operator beside the bound",
           .seconds = 150,
           .items = model_items(here)},
          {.name = "faults",
           .about = "NCCL, compute-sanitizer, what goes wrong",
           .seconds = 60,
           .items = fault_items(here)},
          {.name = "more",
           .about = "bits, attention by cuDNN, all kernels, 8B",
           .seconds = 600,
           .items = more_items(here)}};
}

}  // namespace tessera::app::first_day
