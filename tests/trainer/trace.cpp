// The trace of a run: what the file has, against what the run must have done; its summary; files
// that are not traces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.app.config;
import tessera.app.trace;

using namespace tessera::app;
using nlohmann::json;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::input_error;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

/// Two ranks, one group of all parameters. Every parameter has an even first dim.
std::string config_of(const Folder& folder) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "some words and more of them, ";
  }
  folder.write("text.txt", text);
  return folder.write("run.toml", R"([model]
dim = 8
layers = 2
heads = 2
ffn_dim = 12
[data]
text = ["text.txt"]
seq_len = 8
validation = 0
[train]
steps = 4
batch = 4
threads = 1
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["."]
[log]
metrics = ""
[checkpoint]
folder = ""
)");
}
/// Of that model: embedding and output, 4 projections of attention, 3 of the feed-forward, norms.
constexpr std::int64_t parameters = 2 * 256 * 8 + 2 * (4 * 8 * 8 + 3 * 8 * 12 + 2 * 8) + 8;

json traced(const Folder& folder, const std::string& more) {
  const std::string file = (folder.path() / "trace.json").string();
  const Result result =
      run_program("train " + config_of(folder) + " trace.file=" + file + " " + more);
  INFO(result.error);
  REQUIRE(result.code == 0);
  has(result.out, "trace written: " + file);
  return json::parse(read_file(file));
}

struct Slice {
  std::string name;
  std::string category;
  double begin;
  double end;
  json arguments;
};

std::vector<Slice> slices_of(const json& trace, int rank, const std::string& category = "") {
  std::vector<Slice> slices;
  for (const json& e : trace["traceEvents"]) {
    if (e["ph"] == "X" && e["pid"] == rank && (category.empty() || e["cat"] == category)) {
      slices.push_back({e["name"], e["cat"], e["ts"],
                        e["ts"].get<double>() + e["dur"].get<double>(), e["args"]});
    }
  }
  return slices;
}

std::vector<std::string> names_of(const std::vector<Slice>& slices) {
  std::vector<std::string> names;
  for (const Slice& s : slices) {
    names.push_back(s.name);
  }
  return names;
}

FileSlice issue(double begin, double end, std::int64_t call) {
  return {.category = "collective",
          .name = "all_reduce",
          .begin = begin,
          .end = end,
          .own = end - begin,
          .collective = true,
          .bytes = 100,
          .group = "[0,1]",
          .call = call};
}
FileSlice wait(double begin, double end, std::int64_t call) {
  FileSlice slice = issue(begin, end, call);
  slice.category = "wait";
  slice.name = "wait: all_reduce";
  return slice;
}

}  // namespace

TEST_CASE("a trace has the steps, phases, modules and operators of every rank") {
  const Folder folder;
  const json trace = traced(folder, "trace.steps=[2,3]");
  CHECK(trace["otherData"]["steps"] == json({2, 3}));
  CHECK(trace["otherData"]["ranks"] == 2);
  for (const int rank : {0, 1}) {
    const std::vector<std::string> phases = names_of(slices_of(trace, rank, "phase"));
    CHECK(std::ranges::count(phases, "step 2") == 1);
    CHECK(std::ranges::count(phases, "step 3") == 1);
    CHECK(std::ranges::count(phases, "step 1") + std::ranges::count(phases, "step 4") == 0);
    for (const char* phase : {"forward", "backward", "optimizer", "gradient norm"}) {
      CHECK(std::ranges::count(phases, phase) == 2);
    }
    const std::vector<std::string> modules = names_of(slices_of(trace, rank, "module"));
    CHECK(std::ranges::count(modules, "model.layers.1.mlp.down_proj") == 2);
    int products = 0;
    for (const Slice& s : slices_of(trace, rank, "operator")) {
      if (s.arguments.value("module", "") == "model.layers.0.mlp.up_proj" &&
          !s.arguments["backward"].get<bool>()) {
        ++products;
        // Half of 4 sequences of 8 tokens; the gathered weight.
        CHECK(s.arguments["in"][0] == "f32[4, 8, 8] [Shard(0)]");
        CHECK(s.arguments["in"][1] == "f32[12, 8] [Replicate]");
        CHECK(s.arguments["out"][0] == "f32[4, 8, 12] [Shard(0)]");
      }
    }
    CHECK(products == 2);
  }
}

TEST_CASE("slices of a rank nest, and the ranks share one clock") {
  const Folder folder;
  const json trace = traced(folder, "");
  CHECK(trace["otherData"]["steps"] == json({2, 4}));
  std::map<std::int64_t, std::map<int, std::pair<double, double>>> calls;  // issue, end of wait
  for (const int rank : {0, 1}) {
    std::vector<Slice> slices = slices_of(trace, rank);
    std::ranges::sort(slices, [](const Slice& a, const Slice& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<double> ends;
    constexpr double rounding = 0.002;
    for (const Slice& s : slices) {
      while (!ends.empty() && ends.back() <= s.begin + rounding) {
        ends.pop_back();
      }
      REQUIRE((ends.empty() || s.end <= ends.back() + rounding));
      ends.push_back(s.end);
      if (s.arguments.contains("call") && s.arguments["group"] == "") {
        auto& [begin, end] = calls[s.arguments["call"].get<std::int64_t>()][rank];
        (s.category == "wait" ? end : begin) = s.category == "wait" ? s.end : s.begin;
      }
    }
  }
  CHECK(calls.size() > 10);
  for (const auto& [call, ranks] : calls) {
    REQUIRE(ranks.size() == 2);
    // No rank has a result before the other has issued the call.
    CHECK(ranks.at(0).second > ranks.at(1).first);
    CHECK(ranks.at(1).second > ranks.at(0).first);
  }
}

TEST_CASE("collectives have the bytes that a rank must receive, and memory its categories") {
  const Folder folder;
  const json trace = traced(folder, "trace.steps=[2,2]");
  for (const int rank : {0, 1}) {
    std::map<std::string, std::vector<std::int64_t>> bytes;
    for (const Slice& s : slices_of(trace, rank, "collective")) {
      bytes[s.name].push_back(s.arguments["bytes"]);
      CHECK(s.arguments["ranks"] == json({0, 1}));
    }
    // One group: gathered for the forward and kept for the backward, then reduced; f32.
    CHECK(bytes["all_gather of segments"] == std::vector<std::int64_t>{parameters * 4 / 2});
    CHECK(bytes["reduce_scatter of segments"] == std::vector<std::int64_t>{parameters * 4 / 2});
    const std::vector<Slice> waits = slices_of(trace, rank, "wait");
    CHECK(std::ranges::count(names_of(waits), "wait: all_gather of segments") == 1);
    double most = 0;
    for (const json& e : trace["traceEvents"]) {
      if (e["ph"] == "C" && e["pid"] == rank) {
        CHECK(e["args"].size() == 8);
        most = std::max(most, e["args"]["optimizer"].get<double>());
      }
    }
    // Two moments, of 4 bytes, of half of the parameters.
    CHECK(most >= 4 * static_cast<double>(parameters));
  }
}

TEST_CASE("a summary of a trace has every operator, and refuses what is not a trace") {
  const Folder folder;
  traced(folder, "trace.steps=[2,3] train.micro_batch=1");
  const std::string file = (folder.path() / "trace.json").string();
  const Result result = run_program("trace summary " + file);
  INFO(result.out << result.error);
  CHECK(result.code == 0);
  has(result.out, "steps 2 to 3, 2 ranks, mesh(shard=2): ");
  has(result.out, "model.layers.*.mlp.up_proj");
  has(result.out, "all_gather of segments [0,1]");
  has(result.out, "overlapped with other work: ");
  const TraceData trace = read_trace(file);
  for (const std::vector<FileSlice>& slices : trace.ranks) {
    // Own times divide the time that any slice covers: nothing is counted twice, nothing is lost.
    std::vector<std::pair<double, double>> spans;
    double own = 0;
    for (const FileSlice& s : slices) {
      own += s.own;
      spans.emplace_back(s.begin, s.end);
    }
    std::ranges::sort(spans);
    double covered = 0;
    double last = spans.front().first;
    for (const auto& [begin, end] : spans) {
      covered += std::max(0.0, end - std::max(begin, last));
      last = std::max(last, end);
    }
    CHECK(own == Approx(covered).epsilon(0.001));
  }

  const auto refused = [&](const std::string& bytes, const std::string& why) {
    const std::string bad = folder.write("bad.json", bytes);
    const std::string error = input_error([&] { read_trace(bad); });
    INFO(error);
    CHECK(error.starts_with("trace: " + bad));
    CHECK(error.find(why) != std::string::npos);
  };
  const std::string whole = read_file(file);
  refused("", "it is not JSON in UTF-8, see byte 1");
  refused(whole.substr(0, whole.size() / 2), "it is not JSON");
  refused("[1, 2]", "it is not a JSON object");
  refused(R"({"otherData": 7, "traceEvents": []})", "is not a trace that `tessera train` wrote");
  refused(R"({"traceEvents": []})", "is not a trace that `tessera train` wrote");
  const auto changed = [&](const auto& change) {
    json damaged = json::parse(whole);
    change(damaged);
    return damaged.dump();
  };
  refused(changed([](json& t) { t["traceEvents"] = json::array(); }), "rank 0 of 2 has no events");
  refused(changed([](json& t) { t["otherData"]["ranks"] = 1; }), "there is no rank 1");
  refused(changed([](json& t) { t["otherData"].erase("steps"); }), "otherData: steps");
  refused(changed([](json& t) { t["traceEvents"][3]["ts"] = "soon"; }),
          "event 3: 'ts' is not a number");
  refused(changed([](json& t) { t["traceEvents"][3]["dur"] = -1; }), "is negative");
  refused(changed([](json& t) { t["traceEvents"][3]["pid"] = 1e300; }), "'pid' is not a whole");
  refused(changed([](json& t) { t["otherData"]["program"] = 7; }), "type must be string");
  refused(changed([](json& t) { t["traceEvents"][4] = 7; }), "event 4: is not an object");
  has(input_error([] { read_trace("/nowhere/trace.json"); }), "cannot be read");
  has(input_error([&] { read_trace(folder.path().string()); }), "cannot be read");
}

TEST_CASE("the time of a collective is exposed where a rank waits, and hidden before") {
  // Rank 1 issues call 7 last, at 50. Rank 0 computes until 30, then waits; the data takes 5.
  const TraceData trace{
      .first_step = 1,
      .last_step = 1,
      .mesh = "",
      .ranks = {{issue(0, 10, 7), wait(30, 55, 7)}, {issue(48, 50, 7), wait(60, 65, 7)}},
      .streamed = {{}, {}},
      .memory_peaks = {{}, {}},
      .categories = {}};
  const std::vector<CallTimes> times = call_times(trace);
  REQUIRE(times.size() == 2);
  CHECK(times[0].exposed == 10 + 25);
  CHECK(times[0].hidden == 20);
  CHECK(times[0].last == 1);
  CHECK(times[0].waited_for == 20);
  CHECK(times[1].exposed == 2 + 5);
  CHECK(times[1].hidden == 0);  // it was complete as soon as it was issued: only data moved
  CHECK(times[1].waited_for == 0);
}

TEST_CASE("a collective in a stream is hidden until the rank waits for it, the copy too") {
  // Queued at 10; in the stream from 12 (rank 1: 40) to 55. Rank 0 waits from 45, rank 1 never.
  const auto streamed = [](double queued, double begin, double end) {
    FileSlice slice = issue(begin, end, 3);
    slice.category = "stream";
    slice.queued = queued;
    return slice;
  };
  const TraceData trace{.first_step = 1,
                        .last_step = 1,
                        .mesh = "",
                        .ranks = {{wait(45, 56, 3)}, {}},
                        .streamed = {{streamed(10, 12, 55)}, {streamed(30, 40, 55)}},
                        .memory_peaks = {{}, {}},
                        .categories = {}};
  const std::vector<CallTimes> times = call_times(trace);
  REQUIRE(times.size() == 2);
  CHECK(times[0].exposed == 11);
  CHECK(times[0].hidden == 35);
  CHECK(times[0].last == 1);
  CHECK(times[0].waited_for == 0);  // rank 1 had issued it at 40
  CHECK(times[1].exposed == 0);
  CHECK(times[1].hidden == 25);
}

TEST_CASE("a summary says what share of a step computes, communicates and waits for stages") {
  const auto slice = [](const char* category, double begin, double end) {
    return FileSlice{
        .category = category, .name = "x", .begin = begin, .end = end, .own = end - begin};
  };
  const TraceData trace{
      .first_step = 1,
      .last_step = 1,
      .mesh = "",
      .ranks = {{slice("operator", 0, 60), slice("message", 60, 80), slice("wait", 80, 100)},
                {slice("operator", 0, 90), slice("collective", 90, 100)}},
      .streamed = {{}, {}},
      .memory_peaks = {{}, {}},
      .categories = {}};
  CHECK(trace_summary(trace).find(
            "computing 75.0%, communicating 15.0%, waiting for messages of stages 10.0%\n") !=
        std::string::npos);
}

TEST_CASE("a trace of a model in stages has their times and the bubble") {
  const auto action = [](const char* name, double begin, double end) {
    return FileSlice{.category = "phase", .name = name, .begin = begin, .end = end};
  };
  // One micro-batch, two steps; times in microseconds. The second step takes twice as long.
  TraceData trace{.first_step = 1,
                  .last_step = 2,
                  .mesh = "",
                  .ranks = {{action("step 1", 0, 10000),
                             action("forward of stage 0, micro-batch 0", 1000, 2000),
                             action("send activation of stage 0, micro-batch 0", 2000, 2100),
                             action("receive gradient of stage 0, micro-batch 0", 2100, 6000),
                             action("backward of stage 0, micro-batch 0", 6000, 9000),
                             action("forward of stage 0, micro-batch 0", 11000, 13000),
                             action("send activation of stage 0, micro-batch 0", 13000, 13100),
                             action("receive gradient of stage 0, micro-batch 0", 13100, 21000),
                             action("backward of stage 0, micro-batch 0", 21000, 27000)},
                            {action("receive activation of stage 1, micro-batch 0", 1000, 2500),
                             // An action that is at two places in a captured step.
                             action("forward of stage 1, micro-batch 0", 2500, 3000),
                             action("forward of stage 1, micro-batch 0", 3000, 3500),
                             action("input gradient of stage 1, micro-batch 0", 3500, 4500),
                             action("send gradient of stage 1, micro-batch 0", 4500, 4600),
                             action("weight gradient of stage 1, micro-batch 0", 4600, 5600),
                             action("receive activation of stage 1, micro-batch 0", 11000, 14000),
                             action("forward of stage 1, micro-batch 0", 14000, 15000),
                             action("forward of stage 1, micro-batch 0", 15000, 16000),
                             action("input gradient of stage 1, micro-batch 0", 16000, 18000),
                             action("send gradient of stage 1, micro-batch 0", 18000, 18100),
                             action("weight gradient of stage 1, micro-batch 0", 18100, 20100)}},
                  .streamed = {{}, {}},
                  .memory_peaks = {{}, {}},
                  .categories = {}};
  const StageTimes times = stage_times(trace, "trace.json");
  REQUIRE(times.stages.size() == 2);
  CHECK(times.stages[0].forward == Approx(1.5));
  CHECK(times.stages[0].input_gradient == Approx(4.5));
  CHECK(times.stages[0].weight_gradient == 0);
  CHECK(times.stages[1].forward == Approx(1.5));
  CHECK(times.stages[1].input_gradient == Approx(1.5));
  CHECK(times.stages[1].weight_gradient == Approx(1.5));
  CHECK(times.splits_backward);
  CHECK(times.step == Approx(12));                            // 8 and 16
  CHECK(times.bubble == Approx(1 - (4 + 3 + 8 + 6) / 48.0));  // of two ranks
  trace.ranks = {{action("forward of stage x, micro-batch 0", 0, 1)}};
  has(input_error([&] { stage_times(trace, "trace.json"); }),
      "trace.json: it is no trace of a model in stages");
  const auto far = action("forward of stage 2000000000, micro-batch 0", 0, 1);
  trace.ranks = {{far, far}};  // of two steps
  has(input_error([&] { stage_times(trace, "trace.json"); }),
      "trace.json: it has actions of stage 2000000000, and of 1 stages only");
}

TEST_CASE("a trace of a run that communicates in the background has the tracks of its streams") {
  const Folder folder;
  const json trace = traced(folder, "trace.steps=[2,3] mesh.background=true");
  for (const int rank : {0, 1}) {
    std::set<int> tracks;
    std::set<std::string> groups;
    std::int64_t queued_before_they_began = 0;
    for (const json& e : trace["traceEvents"]) {
      if (e["ph"] == "X" && e["pid"] == rank && e["cat"] == "stream") {
        tracks.insert(e["tid"].get<int>());
        groups.insert(e["args"]["group"]);
        queued_before_they_began += e["args"]["queued"] <= e["ts"] ? 1 : 0;
      }
    }
    const std::vector<Slice> streamed = slices_of(trace, rank, "stream");
    CHECK(tracks == std::set<int>{1, 2});
    CHECK(groups == std::set<std::string>{" in a stream", "reductions in a stream"});
    // Two steps: a gather before forward (its values stay for backward), and a reduction.
    CHECK(names_of(streamed) == names_of({streamed.begin(), streamed.begin() + 4}));
    CHECK(queued_before_they_began == static_cast<std::int64_t>(streamed.size()));
    std::int64_t waits = 0;
    for (const Slice& s : slices_of(trace, rank, "wait")) {
      waits += s.arguments.contains("call") && groups.contains(s.arguments["group"]) ? 1 : 0;
    }
    CHECK(waits == static_cast<std::int64_t>(streamed.size()));
  }
  const std::string file = (folder.path() / "trace.json").string();
  const Result summary = run_program("trace summary " + file);
  INFO(summary.out << summary.error);
  CHECK(summary.code == 0);
  CHECK(summary.out.find("in a stream") != std::string::npos);
}

TEST_CASE("a trace that cannot be made is refused before the run") {
  const Folder folder;
  const std::string config = config_of(folder);
  const auto refused = [&](const std::string& more, const std::string& why) {
    const Result result = run_program("train " + config + " --dry-run " + more);
    INFO(more << ": " << result.error);
    CHECK(result.code == 2);
    CHECK(result.error.find(why) != std::string::npos);
  };
  refused("trace.steps=[1,2]", "trace.steps: needs trace.file");
  refused("trace.file=t.json trace.steps=[2]", "trace.steps: expected two numbers");
  refused("trace.file=t.json trace.steps=[3,2]",
          "trace.steps: the first step is after the last one (got [3, 2])");
  refused("trace.file=t.json trace.steps=[3,9]",
          "the run ends before the last step to trace (steps 4, got [3, 9])");
  refused("trace.file=t.json trace.step=[1,2]", "trace.step: unknown key; did you mean");
  refused("trace.file=" + folder.path().string(), "is a folder; name a file");
  refused("trace.file=text.txt/t.json", "is not a folder");
}

TEST_CASE("a run that continues traces its own steps") {
  const Folder folder;
  const std::string config = config_of(folder);
  const std::string saved = " checkpoint.folder=" + (folder.path() / "saved").string();
  REQUIRE(run_program("train " + config + saved + " train.steps=2").code == 0);
  const std::string file = " trace.file=" + (folder.path() / "t.json").string();
  const Result late = run_program("train " + config + saved + file + " trace.steps=[2,3]");
  CHECK(late.code == 2);
  has(late.error,
      "the run continues after step 2 (expected a first step of 3 or more, got [2, 3])");
  const Result result = run_program("train " + config + saved + file);
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(read_trace((folder.path() / "t.json").string()).first_step == 4);
}

TEST_CASE("a picture of a trace has what a rank did at its times, and the file must be writable") {
  // 100 microseconds are 1160 pixels, from 96 on.
  const auto slice = [](const char* category, double begin, double end, const char* module,
                        bool backward) {
    return FileSlice{.category = category,
                     .name = "linear",
                     .begin = begin,
                     .end = end,
                     .module = module,
                     .backward = backward};
  };
  FileSlice gather = issue(10, 30, 3);
  gather.name = "all_gather of segments";
  const TraceData trace{.first_step = 3,
                        .last_step = 3,
                        .mesh = "mesh(shard=1)",
                        .ranks = {{slice("operator", 0, 40, "model.layers.0.mlp.up", false),
                                   slice("local operator", 5, 30, "model.layers.0.mlp.up", false),
                                   slice("wait", 40, 60, "model.layers.0", false),
                                   slice("operator", 60, 100, "model.layers.12.mlp", true)}},
                        .streamed = {{gather}},
                        .memory_peaks = {{}},
                        .categories = {}};
  const std::string svg = draw_trace(trace);
  INFO(svg);
  const auto bars = [&](const char* colour) {
    std::size_t count = 0;
    for (std::size_t at = svg.find(colour); at != std::string::npos;
         at = svg.find(colour, at + 1)) {
      ++count;
    }
    return count - 1;  // one is the legend's
  };
  CHECK(bars("#4a78b5") == 2);  // the local operator is within the first
  CHECK(bars("#d0342c") == 1);
  CHECK(bars("#3f9c5a") == 1);
  CHECK(svg.find(R"(x="560.0" y="74.0" width="232.0")") != std::string::npos);  // the wait
  CHECK(svg.find(R"(x="212.0" y="96.0" width="232.0")") != std::string::npos);  // the gather
  CHECK(svg.find(">layers.0<") != std::string::npos);
  CHECK(svg.find(">layers.12<") != std::string::npos);
  CHECK(svg.find("Step 3 on mesh(shard=1)") != std::string::npos);

  const Folder folder;
  traced(folder, "trace.steps=[2,2]");
  const std::string file = (folder.path() / "trace.json").string();
  CHECK(run_program("trace draw " + file + " --to " + (folder.path() / "a.svg").string()).code ==
        0);
  CHECK(read_file((folder.path() / "a.svg").string()).find("</svg>") != std::string::npos);
  const Result refused =
      run_program("trace draw " + file + " --to " + (folder.path() / "no/a.svg").string());
  CHECK(refused.code == 2);
  CHECK(refused.error.find("cannot write") != std::string::npos);
}

namespace {

/// What two ranks of four did last: rank `late` has not made call 8 of the group of all.
std::string box(const std::vector<int>& ranks, int late, const std::string& eighth) {
  json all = {{"tessera_black_box", 1},
              {"machine", "a"},
              {"size", 4},
              {"error", {{"rank", -1}, {"step", 5}, {"where", ""}, {"text", "rank 2 was killed"}}},
              {"groups", {{"[0, 1, 2, 3]", {0, 1, 2, 3}}, {"[0, 2]", {0, 2}}}},
              {"ranks", json::array()}};
  for (const int rank : ranks) {
    json calls = json::array(
        {{{"call", "barrier()"}, {"group", "[0, 1, 2, 3]"}, {"sequence", 7}, {"complete", true}}});
    if (rank != late) {
      calls.push_back(
          {{"call", eighth}, {"group", "[0, 1, 2, 3]"}, {"sequence", 8}, {"complete", false}});
    }
    all["ranks"].push_back({{"rank", rank},
                            {"process", 10 + rank},
                            {"ended", false},
                            {"step", 5},
                            {"where", "training"},
                            {"waiting_for", rank == late ? -1 : late},
                            {"calls", calls}});
  }
  return all.dump();
}

}  // namespace

TEST_CASE("files of two machines say who waited for whom") {
  const Folder folder;
  const std::string a = folder.write("box/a.json", box({0, 1}, 2, "all_reduce(4 x f32)"));
  const std::string b = folder.write("box/b.json", box({2, 3}, 2, "all_reduce(4 x f32)"));
  const std::string text = black_box_text({a, b});
  INFO(text);
  CHECK(text.starts_with(
      "rank 2 was killed\nranks 0, 1 and 3 waited in call 8 of group [0, 1, 2, 3]: all_reduce(4 x "
      "f32), for rank 2 (step 5, training), whose last call was 7 of group [0, 1, 2, 3]: "
      "barrier().\n\n"));
  CHECK(black_box_text({(folder.path() / "box").string()}) == text);
  has(black_box_text({a}), "2 of 4 ranks are in these files; name those of the other");
}

TEST_CASE("ranks that have completed a call may wait until another one has") {
  const Folder folder;
  json all = json::parse(box({0, 1, 2, 3}, -1, "all_reduce(4 x f32)"));
  for (json& of : all["ranks"]) {
    const bool stopped = of["rank"] == 2;
    of["waiting_for"] = stopped ? 0 : 2;  // it was stopped before it saw that rank 0 had come
    of["ended"] = !stopped;
    of["calls"].back()["complete"] = !stopped;
  }
  const std::string text = black_box_text({folder.write("a.json", all.dump())});
  INFO(text);
  CHECK(text.starts_with(
      "rank 2 was killed\nranks 0, 1 and 3 waited in call 8 of group [0, 1, 2, 3]: all_reduce(4 x "
      "f32), for rank 2 (step 5, training), which had not completed call 8 of group [0, 1, 2, 3]: "
      "all_reduce(4 x f32).\n\n"));
  for (json& of : all["ranks"]) {
    of["waiting_for"] = -1;
  }
  has(black_box_text({folder.write("b.json", all.dump())}), "No rank waited for another one.");
}

TEST_CASE("ranks whose calls differ are told apart") {
  const Folder folder;
  const std::string a = folder.write("a.json", box({0, 1, 2}, -1, "all_reduce(4 x f32)"));
  const std::string b = folder.write("b.json", box({3}, -1, "barrier()"));
  has(black_box_text({a, b}),
      "The ranks differ in call 8 of group [0, 1, 2, 3]: all_reduce by ranks 0, 1 and 2; "
      "barrier by rank 3.\n");
}

TEST_CASE("files that are not of one run are refused") {
  const Folder folder;
  const std::string a = folder.write("a.json", box({0, 1}, 2, "barrier()"));
  std::string other = box({2}, 2, "barrier()");
  other.replace(other.find("\"size\":4"), 8, "\"size\":3");
  const std::string b = folder.write("b.json", other);
  const std::string c = folder.write("c.json", "{}");
  has(input_error([&] { black_box_text({a, a}); }), "rank 0 is in another file too");
  has(input_error([&] { black_box_text({a, b}); }), "of another run, with 3 ranks and not 4");
  has(input_error([&] { black_box_text({c}); }), "it is not what ranks did last");
  has(input_error([&] { black_box_text({(folder.path() / "none.json").string()}); }), "none.json");
}
