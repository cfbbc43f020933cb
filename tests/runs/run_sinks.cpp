// Runs with sinks: what these are told, in one go, continued and healed; sinks that fail; what is
// refused. Each run is in a process of its own, as a program's main would call it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.base;
import tessera.runs;
import tessera.train;

#include "folder.hpp"

using namespace tessera;
using nlohmann::json;
using tessera::testing::Folder;
using tessera::testing::read_if_there;

namespace {

constexpr std::int64_t batch = 4;

class Line final : public nn::Module {
 public:
  Line() { line_ = add_child<nn::Linear>("line", 2, 1, true, 0.5); }
  std::string_view kind() const override { return "Line"; }
  Tensors forward(const Tensors& inputs) override { return {(*line_)(inputs[0])}; }

 private:
  nn::Child line_;
};

Tensor numbers(const BatchPart& part, std::int64_t width) {
  RandomStream from{.seed = 1,
                    .stream = static_cast<std::uint64_t>(width),
                    .offset = static_cast<std::uint64_t>((part.step * batch + part.first) * width)};
  return ops::uniform_(empty({part.rows, width}), -1, 1, from);
}

struct SinkRun {
  runs::RunSpec spec = {};
  runs::TaskFunctions task = {};
};

runs::SinkConfig command(const std::string& script, double finish_seconds = 5) {
  return {.sink = "command",
          .options = {
              json{{"command", {"sh", "-c", script}}, {"finish_seconds", finish_seconds}}.dump()}};
}

SinkRun run_in(const Folder& folder) {
  SinkRun run;
  run.spec.train.steps = 9;
  run.spec.train.batch = batch;
  run.spec.checkpoint.folder = folder / "checkpoints";
  run.spec.checkpoint.every = 5;
  run.spec.log.metrics = folder / "metrics.jsonl";
  run.spec.data.validate_every = 0;
  run.spec.mesh.axes = {"shard"};
  run.spec.mesh.shape = {2};
  run.spec.parallel = {{.style = "FSDP", .axis = {{"shard"}}, .on = {"."}}};
  run.spec.sinks = {command("cat >> " + (folder / "events"))};
  run.task.model = [] { return std::make_shared<Line>(); };
  run.task.rows = [](const BatchPart& part) { return Tensors{numbers(part, 2), numbers(part, 1)}; };
  run.task.loss_sum = [](nn::Module& model, const Tensors& rows) {
    return ops::sum(ops::square(ops::sub(model(rows[0]), rows[1])));
  };
  run.task.validation_batches = 1;
  run.task.validation_rows = run.task.rows;
  return run;
}

struct Ended {
  int code = -1;
  std::string errors;
  double seconds = 0;
};

Ended ended(const Folder& folder, const SinkRun& run) {
  const std::string errors = folder / "errors";
  const auto start = std::chrono::steady_clock::now();
  const ChildResult child =
      run_in_child("test", std::chrono::seconds(120), [&](const SendReport& send) {
        if (std::freopen(errors.c_str(), "w", stderr) != nullptr &&
            std::freopen("/dev/null", "w", stdout) != nullptr) {
          const int code = runs::train(run.spec, run.task);
          std::fflush(stderr);
          send(std::to_string(code));
        }
      });
  INFO(child.problem);
  REQUIRE(child.problem.empty());
  return {
      .code = std::stoi(child.report),
      .errors = read_if_there(errors),
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

std::vector<json> lines_of(const std::string& file) {
  std::ifstream lines(file);
  std::vector<json> all;
  for (std::string line; std::getline(lines, line);) {
    all.push_back(json::parse(line));
  }
  return all;
}

std::vector<json> events_of(const Folder& folder, const std::string& kind) {
  std::vector<json> all;
  for (json& event : lines_of(folder / "events")) {
    if (event.at("event") == kind) {
      all.push_back(std::move(event));
    }
  }
  return all;
}

std::vector<std::int64_t> steps_of(const std::vector<json>& events) {
  std::vector<std::int64_t> steps;
  for (const json& event : events) {
    steps.push_back(event.at("step"));
  }
  return steps;
}

std::vector<std::int64_t> numbers_to(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = first; i <= last; ++i) {
    all.push_back(i);
  }
  return all;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a sink is told the start, what the metrics file has, phases, lines and the end") {
  const Folder folder;
  const Ended end = ended(folder, run_in(folder));
  INFO(end.errors);
  REQUIRE(end.code == 0);
  CHECK(end.errors.empty());
  const std::vector<json> all = lines_of(folder / "events");
  REQUIRE(all.size() > 20);
  const json& start = all.front();
  CHECK(start.at("event") == "start");
  CHECK(start.at("steps") == 9);
  CHECK(start.at("ranks") == 2);
  CHECK(start.at("done") == 0);
  CHECK(start.at("continues") == false);
  CHECK(start.at("config").at("train").at("batch") == batch);
  CHECK(all.back().at("event") == "end");
  CHECK(all.back().at("outcome") == "done");
  CHECK(all.back().at("step") == 9);

  const std::vector<json> metrics = lines_of(folder / "metrics.jsonl");
  const std::vector<json> steps = events_of(folder, "step");
  REQUIRE(steps_of(steps) == numbers_to(1, 9));
  REQUIRE(metrics.size() == 9);
  for (std::size_t i = 0; i < 9; ++i) {
    const json& told = steps[i].at("numbers");
    for (const auto& [name, value] : metrics[i].items()) {
      if (value.is_number() && name != "step") {
        INFO(name);
        CHECK(told.at(name) == value);
      }
    }
    CHECK(told.at("memory_peaks/total") == metrics[i].at("memory_peaks").at("total"));
  }
  CHECK(steps.back().at("numbers").contains("validation_loss"));
  std::vector<std::string> names;
  for (const json& span : events_of(folder, "span")) {
    CHECK(span.at("seconds") >= 0);
    names.push_back(span.at("name"));
  }
  CHECK(std::ranges::count(names, "setup") == 1);
  CHECK(std::ranges::count(names, "step") == 9);
  CHECK(std::ranges::count(names, "validation") == 1);
  bool saved = false;
  for (const json& line : events_of(folder, "log")) {
    saved = saved || has(line.at("text"), "checkpoint saved");
  }
  CHECK(saved);
}

TEST_CASE("a run that is continued tells that it is the same run") {
  const Folder folder;
  SinkRun run = run_in(folder);
  run.spec.train.steps = 5;
  REQUIRE(ended(folder, run).code == 0);
  run.spec.train.steps = 9;
  REQUIRE(ended(folder, run).code == 0);
  const std::vector<json> starts = events_of(folder, "start");
  REQUIRE(starts.size() == 2);
  CHECK(starts[0].at("run") == starts[1].at("run"));
  CHECK(starts[1].at("continues") == true);
  CHECK(starts[1].at("done") == 5);
  CHECK(steps_of(events_of(folder, "step")) == numbers_to(1, 9));
  const Folder other;
  REQUIRE(ended(other, run_in(other)).code == 0);
  CHECK(events_of(other, "start").at(0).at("run") != starts[0].at("run"));
}

TEST_CASE("a run that heals tells each step once") {
  const Folder folder;
  SinkRun run = run_in(folder);
  run.spec.train.heal = true;
  run.spec.train.heal_every = 3;  // steps are taken again
  run.task.rows = [&](const BatchPart& part) {
    const std::string mark = folder / "killed";
    if (part.step == 7 && part.first == 0 && !std::filesystem::exists(mark)) {
      std::ofstream{mark};
      // What the sinks have is told: they look at their queues five times a second.
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      std::raise(SIGKILL);
    }
    return Tensors{numbers(part, 2), numbers(part, 1)};
  };
  const Ended end = ended(folder, run);
  INFO(end.errors);
  REQUIRE(end.code == 0);
  REQUIRE(std::filesystem::exists(folder / "killed"));
  const std::vector<json> starts = events_of(folder, "start");
  REQUIRE(starts.size() == 2);
  CHECK(starts[0].at("run") == starts[1].at("run"));
  CHECK(starts[1].at("continues") == true);
  CHECK(steps_of(events_of(folder, "step")) == numbers_to(1, 9));
  std::vector<std::int64_t> spans;
  for (const json& span : events_of(folder, "span")) {
    if (span.at("name") == "step") {
      spans.push_back(span.at("step"));
    }
  }
  CHECK(spans == numbers_to(1, 9));
  // The first lines are those of the ranks that died, up to where the others continue.
  double repeated = 0;
  double healed = 0;
  double all = 0;
  for (const json& line : lines_of(folder / "metrics.jsonl")) {
    repeated += line.at("ledger").value("repeated", 0.0);
    healed += line.at("ledger").value("heal", 0.0);
    for (const auto& [use, seconds] : line.at("ledger").items()) {
      all += seconds.get<double>();
    }
  }
  CHECK(repeated > 0);
  CHECK(healed > 0.6);  // the rank slept so long before it died
  // Steps that were taken again are no lines any more, and their first time is in the ledger.
  CHECK(all < end.seconds);
  CHECK(all > 0.9 * end.seconds - 0.3);
}

TEST_CASE("the ledger of a run is all of its time, and names waits for a slow rank") {
  const Folder folder;
  SinkRun run = run_in(folder);
  run.spec.train.steps = 12;
  run.spec.data.validate_every = 4;
  run.spec.log.stragglers = 0;
  run.task.rows = [&](const BatchPart& part) {
    if (part.first > 0 && part.step >= 4) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // of rank 1
    }
    return Tensors{numbers(part, 2), numbers(part, 1)};
  };
  const Ended end = ended(folder, run);
  INFO(end.errors);
  REQUIRE(end.code == 0);
  const std::vector<json> lines = lines_of(folder / "metrics.jsonl");
  REQUIRE(lines.size() == 12);
  std::map<std::string, double> sums;
  double all = 0;
  for (const json& line : lines) {
    for (const auto& [use, seconds] : line.at("ledger").items()) {
      CHECK(seconds > 0);
      sums[use] += seconds.get<double>();
      all += seconds.get<double>();
    }
    CHECK(line.contains("ledger_ranks") == (line.at("step").get<int>() % 4 == 0));
  }
  // Eight steps: rank 1 reads for 0.1 s, and rank 0 waits as long.
  CHECK(sums["slow_ranks"] > 0.5);
  CHECK(sums["slow_ranks"] + sums["communication"] > 0.7);
  CHECK(sums["data"] < 0.4);
  CHECK(sums.contains("start"));
  CHECK(sums.contains("validation"));
  CHECK(sums.contains("save"));  // after step 5
  CHECK(all < end.seconds);
  CHECK(all > 0.9);
  const json& ranks = lines.back().at("ledger_ranks");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[1].at("data") > 0.75);
  CHECK(ranks[1].value("slow_ranks", 0.0) < 0.3);
  double first = 0;
  for (const auto& [use, seconds] : ranks[0].items()) {
    first += seconds.get<double>();
  }
  CHECK(std::abs(first - all) < 0.05);  // it was gathered just before the line
  bool told = false;
  for (const json& line : events_of(folder, "log")) {
    told = told || has(line.at("text"), "time of 2 ranks: ");
  }
  CHECK(told);
}

TEST_CASE("a run that fails, or is interrupted, tells how it has ended") {
  const Folder folder;
  SinkRun run = run_in(folder);
  run.task.rows = [](const BatchPart& part) {
    if (part.step == 3) {
      fail({.thing = "the rows", .wrong = "are broken"});
    }
    return Tensors{numbers(part, 2), numbers(part, 1)};
  };
  const Ended end = ended(folder, run);
  CHECK(end.code == 1);
  CHECK(end.seconds < 60);
  std::vector<json> ends = events_of(folder, "end");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].at("outcome") == "failed");
  CHECK(ends[0].at("step") == 3);

  const Folder stopped;
  run = run_in(stopped);
  run.task.rows = [](const BatchPart& part) {
    if (part.step == 3 && part.first == 0) {
      ::kill(::getppid(), SIGTERM);
    }
    return Tensors{numbers(part, 2), numbers(part, 1)};
  };
  const Ended interrupted = ended(stopped, run);
  INFO(interrupted.errors);
  CHECK(interrupted.code == 130);
  ends = events_of(stopped, "end");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].at("outcome") == "interrupted");
}

TEST_CASE("sinks that fail, hang or end too early end no run and change none of its bits") {
  const Folder calm;
  const Folder harmed;
  REQUIRE(ended(calm, run_in(calm)).code == 0);
  SinkRun run = run_in(harmed);
  run.spec.sinks.insert(run.spec.sinks.begin(),
                        {command("exit 3"), command("sleep 1000", 0.3), command("kill -9 $$")});
  const Ended end = ended(harmed, run);
  INFO(end.errors);
  CHECK(end.code == 0);
  CHECK(has(end.errors, "sinks[0] (command): command: the program has ended with exit code 3"));
  CHECK(has(end.errors, "sinks[1] (command): command: the program did not end when its input did"));
  CHECK(has(end.errors, "sinks[2] (command): command: the program has ended by signal 9"));
  CHECK(steps_of(events_of(harmed, "step")) == numbers_to(1, 9));
  const auto bytes = [](const Folder& folder) {
    return read_if_there(checkpoint_folder(folder / "checkpoints", 9) + "/rank-0.safetensors");
  };
  CHECK_FALSE(bytes(calm).empty());
  CHECK(bytes(calm) == bytes(harmed));
}

TEST_CASE("a sink that is wrong is refused before the run starts, with its key") {
  const Folder folder;
  const auto refused = [&](const runs::SinkConfig& sink, const std::string& text) {
    SinkRun run = run_in(folder);
    run.spec.sinks.push_back(sink);
    const Ended end = ended(folder, run);
    INFO(end.errors);
    CHECK(end.code == 2);
    CHECK(has(end.errors, text));
    CHECK(has(end.errors, "sinks[1]"));
    CHECK(end.errors.find("error:") == end.errors.rfind("error:"));
    CHECK_FALSE(std::filesystem::exists(folder / "events"));
  };
  refused({.sink = "comand"}, "there is no sink 'comand'");
  refused({.sink = ""}, "sinks[1].sink");
  refused({.sink = "command"}, "command must be a program");
  refused({.sink = "command", .options = {R"({"command": ["/no/such"]})"}},
          "there is no program /no/such");
  refused({.sink = "command", .options = {R"({"command": ["sh"], "x": 1})"}},
          "there is no option 'x'");
  refused({.sink = "command", .options = {"[1]"}}, "sinks[1].options");
}
