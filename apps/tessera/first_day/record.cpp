module;
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.app.base;
import :calls;
import :pack;
import :pack_runs;

// What GPUs are compared with: made where the pack is made.
namespace tessera::app::first_day {
namespace {

using Json = nlohmann::ordered_json;
constexpr double limit = 600;  // seconds of a command

void need(const std::string& thing, const ProgramOutcome& ran) {
  if (!ran.problem.empty()) {
    fail({.thing = "pack",
          .wrong = fmt::format("{}: {}", thing, ran.problem),
          .details = ran.output});
  }
}

Json losses_of(const MachineSetup& here) {
  Json all = Json::object();
  for (const StyleRun& run : style_runs()) {
    const Steps steps =
        train(here, "cpu-" + run.name, style_words(here, run), style_steps(here), limit);
    need(run.name, steps.ran);
    all[run.name] = steps.values;
  }
  return all;
}

Json models_of(const MachineSetup& here) {
  Json all = Json::object();
  for (const ModelRun& run : model_runs()) {
    const std::string step = here.pack.path("reference/" + run.name + ".step");
    std::vector<std::string> words = model_words(here, run);
    words.insert(words.begin(), {here.pack.program(), "graph", "capture"});
    words.insert(words.end(), {"--to", step});
    need(run.name, run_words(words, limit));
    const ProgramOutcome ran = run_words(
        {here.pack.path("bin/tessera-tools"), "graph", "roofline", step, "--json"}, limit);
    need(run.name, ran);
    const Json bound = parse_ordered_json(ran.output);
    Json& model = all[run.name] = Json::object();
    for (const char* key : {"tokens_per_second", "peak_bytes", "expected_tokens_per_second"}) {
      if (bound.contains(key)) {
        model[key] = bound[key];
      }
    }
  }
  return all;
}

}  // namespace

void record_references(const std::string& folder, bool small) {
  const ScratchFolder scratch("first-day");
  const MachineSetup here{.pack = {.folder = folder, .facts = "", .architectures = {}},
                          .scratch = scratch.path(),
                          .gpus = {},
                          .small = small};
  const Json references = {{"styles", losses_of(here)}, {"models", models_of(here)}};
  write_output("pack", here.pack.path("reference/steps.json"), json_text(references, 1) + "\n");
  std::vector<std::vector<std::string>> heard;
  for (const StyleRun& run : style_runs()) {
    if (run.mesh.find('2') != std::string::npos) {
      continue;  // its ranks call what others call alone
    }
    heard.push_back(style_words(here, run));
    heard.back().insert(heard.back().end(), {"train.steps=4", "optimizer.warmup=1",
                                             "checkpoint.folder=", "log.metrics="});
  }
  record_calls(here.pack.path("reference/operators.safetensors"), heard);
}

}  // namespace tessera::app::first_day
