// tessera plan --search against brute force, and what failures cost against a simulation.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.dtensor;
import tessera.program;
import tessera.nn;
import tessera.app.config;
import tessera.runs;
import tessera.app.plan;

namespace runs = tessera::runs;
using namespace tessera::app;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::input_error;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

using nlohmann::json;

const std::string config_text = R"(
[model]
dim = 32
layers = 2
heads = 4
kv_heads = 4
ffn_dim = 64
[data]
text = ["text.txt"]
seq_len = 16
validation = 0
[train]
batch = 8
steps = 2
[checkpoint]
folder = ""
[log]
metrics = ""
)";

/// Ranks with so much memory. Collectives on one machine are as slow as that computing is not all.
std::string hardware(double memory_gib, const std::string& overlaps = "true",
                     const std::string& more = "", const std::string& launch = "5") {
  return "name = \"by hand\"\nranks = 4\noverlaps = " + overlaps +
         "\nmemory_gib = " + std::to_string(memory_gib) +
         "\n[rates]\nproducts_32_tflops = 0.05\nproducts_16_tflops = 0.1\n"
         "products_8_tflops = 0.1\nattention_tflops = 0.05\nmemory_gb = 10\nlaunch_us = " +
         launch +
         "\n"
         "[inside]\nlatency_us = 10\nbandwidth_gb = 2\n"
         "[between]\nlatency_us = 20\nbandwidth_gb = 1\n" +
         more;
}

struct Searched {
  Searched() {
    std::string text;
    for (int i = 0; i < 200; ++i) {
      text += "A line of a text that is long enough.\n";
    }
    folder.write("text.txt", text);
    config = folder.write("run.toml", config_text);
  }

  std::string file(const std::string& name) const { return (folder.path() / name).string(); }

  Folder folder;
  std::string config;
};

json printed(const std::string& arguments) {
  const Result done = run_program("plan " + arguments + " --json");
  INFO(arguments << "\n" << done.out << done.error);
  REQUIRE(done.code == 0);
  return json::parse(done.out);
}

/// Seconds of a run with failures, counted interval by interval.
double simulated(const FailingRun& run, int intervals, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> next(1 / run.between);
  double now = 0;
  double failure = next(random);
  for (int done = 0; done < intervals;) {
    double end = now + run.interval + run.write;
    if (failure >= end) {
      now = end;
      ++done;
      continue;
    }
    do {  // a restart may fail too
      now = failure;
      failure = now + next(random);
      end = now + run.restart;
    } while (failure < end);
    now = end;
  }
  return now;
}

/// The shortest step of all layouts that fit, with any micro-batch and checkpointing or without it;
/// all micro-batches are simulated.
double shortest_by_force(const SearchedRun& searched, Planner& planner) {
  const auto model = runs::training_model(*searched.task, load_config(searched.file));
  double best = std::numeric_limits<double>::infinity();
  for (const RunLayout& layout :
       layouts_of({.ranks = searched.ranks,
                   .ranks_of_machine = planner.hardware().ranks,
                   .modules = patterns_of(searched.task->shape(), *model)})) {
    for (const char* const micro : {"1", "2", "4", "0"}) {
      for (const char* const again : {"false", "true"}) {
        LayoutCandidate one{.layout = layout, .overrides = layout.overrides};
        one.overrides.push_back(std::string("train.micro_batch=") + micro);
        one.overrides.push_back(std::string("train.activation_checkpointing=") + again);
        runs::Run tried;
        tried.task = searched.task;
        try {
          tried.config = config_of(searched, one);
          const runs::Trial trial = runs::try_step(tried);
          if (!is_staged(trial) &&
              std::string(micro) == "1") {  // of which two and three are planned
            CHECK(planner.step_of(tried, trial).seconds ==
                  Approx(planner.simulated(step_program(tried, runs::setup_of(tried))).seconds));
          }
          if (static_cast<double>(trial.account.memory.total_peak) <= planner.hardware().memory) {
            best = std::min(
                best, is_staged(trial)
                          ? plan_stages(tried, trial, planner).times.seconds
                          : planner.simulated(step_program(tried, runs::setup_of(tried))).seconds);
          }
        } catch (const tessera::Error&) {
          continue;  // not possible
        }
      }
    }
  }
  return best;
}

}  // namespace

TEST_CASE("plan: what failures cost is what a simulation of them counts") {
  for (const FailingRun& run :
       {FailingRun{.between = 20000, .write = 30, .restart = 300, .interval = 1000},
        FailingRun{.between = 2000, .write = 60, .restart = 100, .interval = 500},
        FailingRun{.between = 500, .write = 100, .restart = 200, .interval = 400}}) {
    constexpr int intervals = 200000;
    const double by_work = simulated(run, intervals, 7) / (intervals * run.interval);
    CHECK(time_by_work(run) == Approx(by_work).epsilon(0.01));
    CHECK(lost_share(run) == Approx(1 - 1 / by_work).margin(0.005));
    // No interval of a fine grid loses less than the best one does, but for the formula's error.
    FailingRun best = run;
    best.interval = best_interval(run);
    FailingRun other = run;
    double least = std::numeric_limits<double>::infinity();
    for (other.interval = 10; other.interval < 5 * run.between; other.interval *= 1.01) {
      least = std::min(least, time_by_work(other));
    }
    CHECK(time_by_work(best) <= least * 1.001);
  }
  CHECK(time_by_work({.write = 5, .interval = 100}) == Approx(1.05));  // nothing fails
  CHECK(std::isinf(best_interval({.write = 5})));
  CHECK(std::isinf(time_by_work({.between = 100, .interval = 0})));  // no checkpoints
}

TEST_CASE("plan: failures in a plan") {
  const Searched all;
  const std::string rates =
      "[failures]\nper_rank_year = 1000\nwrite_gb = 0.001\nread_gb = 0.002\n"
      "restart_s = 60\n";
  const std::string file = all.folder.write("failing.toml", hardware(1, "true", rates));
  const std::string saves = " checkpoint.folder=" + all.file("saves") + " checkpoint.every=1000" +
                            " checkpoint.save=sync";
  const json plan = printed(all.config + saves + " --hardware " + file);
  const json& failures = plan.at("failures");
  CHECK(failures.at("seconds_between").get<double>() == Approx(365.25 * 86400 / 1000));
  CHECK(failures.at("interval_seconds").get<double>() ==
        Approx(1000 * plan.at("seconds").get<double>()));
  // Parameters and the two moments of AdamW.
  const double bytes = 1e6 * failures.at("writing_seconds").get<double>();
  CHECK(failures.at("restart_seconds").get<double>() == Approx(60 + bytes / 2e6));
  CHECK(std::fmod(bytes, 12) == Approx(0).margin(1e-3));
  // Ten times as many ranks' failures by the option.
  const json more =
      printed(all.config + saves + " --failures-per-rank-year 1e4 --hardware " + file);
  CHECK(more.at("failures").at("seconds_between").get<double>() == Approx(365.25 * 86.4 / 10));
  CHECK(more.at("failures").at("lost_share") > failures.at("lost_share"));
  const Result refused =
      run_program("plan " + all.config + " --failures-per-rank-year 1 --hardware " +
                  all.folder.write("rates.toml", hardware(1)));
  CHECK(refused.code == 2);
  has(refused.error, "the hardware file does not say how fast checkpoints are written");
}

TEST_CASE("plan --search: the best of all candidates, by brute force", "[.long]") {
  const Searched all;
  for (const char* const style :
       {"FSDP", "Replicate", "ColwiseParallel", "RowwiseParallel", "PrepareModuleInput",
        "SequenceParallel", "LossParallel", "Pipeline"}) {
    tessera::plugin::host().load(std::string(TESSERA_SHIPPED_PLUGINS "/") + style + ".so");
  }
  // Without launches small micro-batches cost no more, and stages wait less with them.
  const std::string rates = all.folder.write("rates.toml", hardware(1, "true", "", "0.01"));
  const std::string small = all.folder.write("small.toml", hardware(0.0006));
  for (const auto& [file, ranks] : {std::pair(rates, 2), {small, 4}}) {
    SearchedRun searched;
    searched.file = all.config;
    searched.ranks = ranks;
    const runs::RunSpec config = load_config(all.config);
    searched.task = runs::open_language_task(config);
    Planner planner(config, file);
    const SearchResult result = search_layouts(searched, planner);
    INFO(file << ", " << ranks << " ranks");
    REQUIRE(!result.planned.empty());
    CHECK(result.planned.front().step.seconds ==
          Approx(shortest_by_force(searched, planner)).epsilon(1e-6));
    const auto stages =
        std::ranges::find(result.planned, std::string("stages 2"),
                          [](const LayoutCandidate& one) { return one.layout.name; });
    CHECK((ranks == 4 || (stages != result.planned.end() && stages->micro_batch < 8)));
    for (const LayoutCandidate& one : result.planned) {
      CHECK(one.least <= one.step.seconds);  // bounds are bounds
      CHECK(one.memory <= planner.hardware().memory);
    }
  }
}

TEST_CASE("plan --search: a plan of the saved config says the same") {
  const Searched all;
  const std::string rates = all.folder.write("rates.toml", hardware(1, "false"));
  const std::string saved = all.file("best/run.toml");
  std::filesystem::create_directories(all.file("best"));
  const json found = printed(all.config + " --search --ranks 4 --precision f32,bf16 --hardware " +
                             rates + " --save " + saved);
  const json& best = found.at("candidates").at(0);
  std::set<std::string> precisions;
  for (const json& one : found.at("candidates")) {
    precisions.insert(one.at("precision"));
    CHECK((!one.contains("seconds") || one.at("seconds") >= best.at("seconds")));
  }
  CHECK(precisions == std::set<std::string>{"bf16", "f32"});
  const json plan = printed(saved + " --hardware " + rates);
  CHECK(trainer_test::read_file(saved).find(
            "precision = \"" + best.at("precision").get<std::string>()) != std::string::npos);
  CHECK(plan.at("ranks") == 4);
  CHECK(plan.at("seconds").get<double>() == Approx(best.at("seconds").get<double>()));
  CHECK(plan.at("memory_bytes") == best.at("memory_bytes"));
  CHECK(plan.at("step_tokens") == 8 * 16);
  const Result trained = run_program("train " + saved + " train.steps=2");
  INFO(trained.out << trained.error);
  CHECK(trained.code == 0);
}

TEST_CASE("plan --search: the fastest candidates are run, and their order is that of the runs") {
  const Searched all;
  const json found = printed(all.config + " --search --try 2 train.steps=40");
  const json& candidates = found.at("candidates");
  REQUIRE(candidates.size() > 1);
  CHECK(candidates[0].at("run_seconds").get<double>() > 0);
  CHECK(candidates[1].at("run_seconds") >= candidates[0].at("run_seconds"));
  const json one = printed(all.config + " --search --try 1 train.steps=40");
  CHECK(one.at("candidates").at(0).contains("run_seconds"));
  CHECK_FALSE(one.at("candidates").at(1).contains("run_seconds"));
  // Nothing is left of the runs.
  CHECK_FALSE(std::filesystem::exists(all.file("metrics.jsonl")));
  CHECK_FALSE(std::filesystem::exists(all.file("checkpoints")));
  const Result table = run_program("plan " + all.config + " --search --try 1");
  INFO(table.out << table.error);
  CHECK(table.code == 0);
  has(table.out, "run ms");
  has(table.out, "is the fastest of 1 that were run, of ");
}

TEST_CASE("plan --search: what the table says, and bad input") {
  const Searched all;
  const std::string small = all.folder.write("small.toml", hardware(0.0004));
  const Result done = run_program("plan " + all.config + " --search --ranks 4 --hardware " + small);
  INFO(done.out << done.error);
  CHECK(done.code == 0);
  has(done.out, "replicated 4 needs ");
  has(done.out, "fully sharded 4 ");
  has(done.out, "is the fastest of");
  const auto refused = [&](const std::string& options) {
    const Result result = run_program("plan " + all.config + " " + options);
    INFO(result.out << result.error);
    CHECK(result.code == 2);
    return result.error;
  };
  const std::string least = all.folder.write("least.toml", hardware(0.0001));
  has(refused("--search --ranks 4 --hardware " + least), "nothing fits: ");
  has(refused("--search --ranks 5 --hardware " + small), "no layout is possible");
  has(refused("--save x.toml --hardware " + small), "--save: is of a search");
  has(refused("--search --trace x.json --hardware " + small), "--trace: a search plans many steps");
  has(refused("--try 2 --hardware " + small), "--try: is of a search");
  has(refused("--search --try 2 --hardware " + small), "--try: candidates are run on this machine");
  has(refused("--search --try 0"), "--try");
  has(refused("--search --precision f7 --hardware " + small), "train.precision");
}
