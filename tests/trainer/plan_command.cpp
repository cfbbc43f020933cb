// tessera plan: a step in time, by hand and against what runs say of themselves.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "support.hpp"

using trainer_test::Folder;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

using nlohmann::json;

bool has(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

/// Every kernel takes one second, or the bytes that it moves if these are many; a collective takes
/// the bytes that arrive, and `latency` for each round.
std::string hardware(const std::string& overlaps, int ranks, double latency = 0) {
  return "name = \"by hand\"\nranks = " + std::to_string(ranks) + "\noverlaps = " + overlaps +
         "\nmemory_gib = 1\nprice_per_hour = 2\n"
         "[rates]\nproducts_32_tflops = 1e9\nproducts_16_tflops = 1e9\nproducts_8_tflops = 1e9\n"
         "attention_tflops = 1e9\nmemory_gb = 1e9\nlaunch_us = 1e6\n"
         "[inside]\nlatency_us = " +
         std::to_string(latency * 1e6) + "\nbandwidth_gb = 1e-6\n" +
         "[between]\nlatency_us = 0\nbandwidth_gb = 1e-7\n";
}

const std::string run = R"(
[model]
dim = 16
layers = 2
heads = 2
ffn_dim = 32
[data]
text = ["text.txt"]
seq_len = 8
validation = 0
[train]
batch = 4
steps = 2
[checkpoint]
folder = ""
[log]
metrics = ""
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)";

struct Planned {
  Planned() {
    std::string text;
    for (int i = 0; i < 200; ++i) {
      text += "A line of a text that is long enough.\n";
    }
    folder.write("text.txt", text);
    config = folder.write("run.toml", run);
  }

  json plan(const std::string& options) const {
    const Result done = run_program("plan " + config + " --json " + options);
    INFO(done.out << done.error);
    REQUIRE(done.code == 0);
    return json::parse(done.out);
  }

  Folder folder;
  std::string config;
};

double received(const json& plan, const std::string& name) {
  for (const json& sum : plan.at("collectives")) {
    if (sum.at("operator") == name) {
      return sum.at("received_bytes").get<double>();
    }
  }
  return 0;
}

double seconds(const json& plan, const std::string& name) {
  for (const json& sum : plan.at("collectives")) {
    if (sum.at("operator") == name) {
      return sum.at("seconds").get<double>();
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("plan: kernels, collectives and waits add up to the step") {
  const Planned planned;
  const std::string alone = planned.folder.write("alone.toml", hardware("false", 8));
  const json one = planned.plan("--hardware " + alone);
  std::int64_t calls = 0;
  for (const json& sum : one.at("operators")) {
    calls += sum.at("calls").get<std::int64_t>();
  }
  CHECK(one.at("computing_seconds").get<double>() == Approx(static_cast<double>(calls)));
  // Nothing is hidden where ranks copy for themselves.
  CHECK(one.at("waiting_seconds").get<double>() ==
        Approx(one.at("communicating_seconds").get<double>()));
  CHECK(one.at("seconds").get<double>() == Approx(one.at("computing_seconds").get<double>() +
                                                  one.at("communicating_seconds").get<double>()));
  CHECK(one.at("step_tokens") == 32);
  CHECK(one.at("tokens_per_second").get<double>() == Approx(32 / one.at("seconds").get<double>()));

  const std::string beside = planned.folder.write("beside.toml", hardware("true", 8));
  const json two = planned.plan("--hardware " + beside);
  CHECK(two.at("communicating_seconds").get<double>() ==
        Approx(one.at("communicating_seconds").get<double>()));
  CHECK(two.at("waiting_seconds").get<double>() < one.at("waiting_seconds").get<double>());
  CHECK(two.at("seconds").get<double>() == Approx(two.at("computing_seconds").get<double>() +
                                                  two.at("waiting_seconds").get<double>()));
}

TEST_CASE("plan: the time of a collective is that of its bytes, by machine, and of its rounds") {
  const Planned planned;
  const std::string together = planned.folder.write("together.toml", hardware("true", 8));
  const std::string pairs = planned.folder.write("pairs.toml", hardware("true", 2));
  const std::string late = planned.folder.write("late.toml", hardware("true", 8, 0.5));
  const json here = planned.plan("--ranks 8 --hardware " + together);
  const double bytes = received(here, "all_gather_into");
  CHECK(bytes > 0);
  CHECK(seconds(here, "all_gather_into") == Approx(bytes / 1e3));  // 1e-6 GB/s
  // On 4 machines of 2 ranks, 3 of 7 parts come from other machines, at a tenth of the rate.
  const json apart = planned.plan("--ranks 8 --hardware " + pairs);
  CHECK(seconds(apart, "all_gather_into") == Approx(bytes * 3 / 7 / 1e2));
  const json slow = planned.plan("--ranks 8 --hardware " + late);
  double calls = 0;
  for (const json& sum : slow.at("collectives")) {
    calls += sum.at("operator") == "all_gather_into" ? sum.at("calls").get<double>() : 0;
  }
  CHECK(seconds(slow, "all_gather_into") == Approx(bytes / 1e3 + calls * 3 * 0.5));  // 8 = 2^3
}

TEST_CASE("plan: bytes and memory are those of the run's account, on many ranks") {
  const Planned planned;
  const std::string file = planned.folder.write("file.toml", hardware("true", 8));
  // Uneven and empty shards; sums that are wider than what is sent.
  for (const std::string more : {"--ranks 2", "--ranks 24", "--ranks 1024 train.precision=bf16"}) {
    const std::string options = more + " --hardware " + file;
    const json plan = planned.plan(options);
    const Result dry = run_program("plan " + planned.config + " " + options);
    INFO(dry.out << dry.error);
    REQUIRE(dry.code == 0);
    double bytes = 0;
    for (const json& sum : plan.at("collectives")) {
      bytes += sum.at("received_bytes").get<double>();
    }
    // "communication on 'shard': 6 all_gather, ...; 12.3 KiB per rank and step"
    const std::size_t at = dry.out.find("communication  on 'shard'");
    REQUIRE(at != std::string::npos);
    const std::string line = dry.out.substr(at, dry.out.find('\n', at) - at);
    const std::size_t amount = line.rfind("; ") + 2;
    const double scale = has(line, "MiB") ? 1 << 20 : 1 << 10;
    CHECK(bytes / scale == Approx(std::stod(line.substr(amount))).margin(0.06));
  }
}

TEST_CASE("plan: what was measured here, a trace and a file of rates") {
  const Planned planned;
  const std::string rates = planned.folder.path().string() + "/here.toml";
  const std::string trace = planned.folder.path().string() + "/plan.json";
  const json plan = planned.plan("--save-hardware " + rates + " --trace " + trace);
  CHECK(plan.at("computing_seconds").get<double>() > 0);
  CHECK(plan.at("seconds").get<double>() < 60);
  for (const json& sum : plan.at("operators")) {
    INFO(sum.dump());
    CHECK(sum.at("seconds").get<double>() > 0);
  }
  const Result summary = run_program("trace summary " + trace);
  INFO(summary.out << summary.error);
  CHECK(summary.code == 0);
  CHECK(has(summary.out, "1 rank, mesh(shard=2)"));
  CHECK(has(summary.out, "linear_grad_weight"));
  const json stages = planned.plan("'parallel=[{style=Pipeline,axis=shard,on=[\".\"]}]'");
  CHECK(stages.at("pipeline").at("stages").size() == 2);
  for (const json& stage : stages.at("pipeline").at("stages")) {
    CHECK(stage.at("forward_seconds") > 0);
  }
  const json again = planned.plan("--hardware " + rates);
  CHECK(again.at("hardware") == plan.at("hardware"));
}

TEST_CASE("plan: stages do together what one rank does, and wait in the bubble") {
  const Planned planned;
  // Launches take no time: what products and bytes take adds up.
  std::string rates = hardware("true", 8);
  rates.replace(rates.find("launch_us = 1e6"), 15, "launch_us = 1e-9");
  rates.replace(rates.find("memory_gb = 1e9"), 15, "memory_gb = 10 ");
  rates.replace(rates.find("bandwidth_gb = 1e-6"), 19, "bandwidth_gb = 1e3 ");
  const std::string file = planned.folder.write("rates.toml", rates);
  const std::string more = " train.micro_batch=1 train.batch=8 --hardware " + file;
  const json one = planned.plan("mesh.axes=[] mesh.shape=[] parallel=[]" + more);
  for (const std::string schedule : {"1f1b", "zero_bubble"}) {
    const json plan = planned.plan(
        "'parallel=[{style=Pipeline,axis=shard,on=[\".\"],options={"
        "schedule=\"" +
        schedule + "\"}}]'" + more);
    const json& pipeline = plan.at("pipeline");
    INFO(schedule << plan.dump(1));
    CHECK(pipeline.at("micro_batches") == 8);
    double work = 0;
    double rest = 0;
    double last = 0;
    for (const json& stage : pipeline.at("stages")) {
      for (const char* const part :
           {"forward_seconds", "input_gradient_seconds", "weight_gradient_seconds"}) {
        work += 8 * stage.at(part).get<double>();
      }
      CHECK(stage.at("forward_seconds") > 0);
      CHECK((stage.at("weight_gradient_seconds") > 0) == (schedule == "zero_bubble"));
    }
    for (const json& seconds : pipeline.at("seconds_after")) {
      rest += seconds.get<double>();
      last = std::max(last, seconds.get<double>());
    }
    CHECK(work + rest == Approx(one.at("computing_seconds").get<double>()).epsilon(0.05));
    const double end = pipeline.at("seconds").get<double>();
    CHECK(plan.at("seconds").get<double>() == Approx(end + last));
    CHECK(pipeline.at("bubble").get<double>() == Approx(1 - work / (2 * end)));
    CHECK(plan.at("seconds") < one.at("seconds"));
  }
}

TEST_CASE("plan: a page, and a run beside the plan") {
  const Planned planned;
  const std::string trace = planned.folder.path().string() + "/run.json";
  const std::string page = planned.folder.path().string() + "/plan.html";
  const Result trained = run_program("train " + planned.config +
                                     " train.steps=4 trace.file=" + trace + " 'trace.steps=[3,4]'");
  INFO(trained.out << trained.error);
  REQUIRE(trained.code == 0);
  const Result done =
      run_program("plan " + planned.config + " --page " + page + " --compare " + trace +
                  " --hardware " + planned.folder.write("rates.toml", hardware("true", 8)));
  INFO(done.out << done.error);
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "planned / measured"));
  CHECK(has(done.out, "waiting for other ranks"));
  const std::string html = trainer_test::read_file(page);
  CHECK(has(html, "<h2>Planned and measured</h2>"));
  CHECK(has(html, "planned / measured"));
  // The step in time and its memory are pictures within the page, which needs nothing else.
  CHECK(html.find("<svg") != html.rfind("<svg"));
  CHECK(!has(html, "<?xml"));
  CHECK(!has(html, "<script"));
  CHECK(!has(html, " src="));
  CHECK(!std::filesystem::exists(page + ".trace.json"));
  const Result unread = run_program("plan " + planned.config + " --compare " + planned.config);
  CHECK(unread.code == 2);
}

TEST_CASE("plan: bad input") {
  const Planned planned;
  const Folder& folder = planned.folder;
  const auto refused = [&](const std::string& options) {
    const Result done = run_program("plan " + planned.config + " " + options);
    INFO(done.out << done.error);
    CHECK(done.code == 2);
    return done.error;
  };
  CHECK(has(refused("--ranks 3 train.batch=2 'mesh.axes=[\"shard\",\"other\"]' 'mesh.shape=[1,2]'"),
            "--ranks: the other axes of the mesh have 2 ranks (expected a multiple of 2, got 3)"));
  CHECK(has(refused("--hardware " + folder.path().string() + "/none.toml"), "none.toml"));
  CHECK(has(refused("--hardware " + folder.write("cut.toml", "name = \"x\"\n[rates\n")),
            "cut.toml:2: not TOML"));
  CHECK(has(refused("--hardware " + folder.write("few.toml", "name = \"x\"\n[rates]\n")),
            "the key 'products_32_tflops' is missing"));
  CHECK(
      has(refused("'parallel=[{style=Pipeline,axis=shard,on=[\".\"]}]' train.micro_batch=2 --trace "
                  "x.json --hardware " +
                  folder.write("staged.toml", hardware("true", 8))),
          "--trace: the ranks of a model in stages do different things"));
  std::string text = hardware("true", 8);
  CHECK(has(refused("--hardware " + folder.write("more.toml", "colour = 1\n" + text)), "colour"));
  CHECK(has(refused("--hardware " + folder.write("zero.toml", hardware("true", 0))),
            "must be at least 1"));
  CHECK(
      has(refused("--hardware " + folder.write("word.toml", hardware("\"yes\"", 8))), "overlaps"));
}

TEST_CASE(
    "plan: a run that heals copies its state at the end of a step, and sends it to a machine") {
  const Planned planned;
  const auto with_host = [&](int ranks, const char* host) {
    std::string text = hardware("false", ranks);
    text.insert(text.find("[inside]"), host);
    return "--hardware " + planned.folder.write("h.toml", text);
  };
  const std::string options = "--ranks 4 ";
  const json plain = planned.plan(options + with_host(4, ""));
  const double step = plain.at("seconds").get<double>();
  CHECK(plain.at("keeping_seconds") == 0);
  const auto kept = [&](const std::string& more, int ranks, const char* host) {
    return planned.plan("train.heal=true " + more + options + with_host(ranks, host));
  };
  // Parameters and AdamW's state: three values of each parameter, on one of four ranks. The memory
  // has them twice, and four times with a second home.
  const json here = kept("", 4, "");
  const auto snapshot = [](const json& plan) {
    return plan.at("memory_peaks").at("snapshot").get<double>();
  };
  const double bytes = snapshot(here) / 2;
  CHECK(bytes > 3 * plain.at("memory_peaks").at("parameter").get<double>() * 0.9);
  CHECK(bytes < 3 * plain.at("memory_peaks").at("parameter").get<double>() * 2);
  CHECK(here.at("keeping_seconds").get<double>() == Approx(2 * bytes / 1e18));
  const json copied = kept("", 4, "host_gb = 1e-6\n");
  CHECK(copied.at("keeping_seconds").get<double>() == Approx(bytes / 1e3));
  CHECK(copied.at("seconds").get<double>() == Approx(step + bytes / 1e3));
  const json seldom = kept("train.heal_every=5 ", 4, "host_gb = 1e-6\n");
  CHECK(seldom.at("keeping_seconds").get<double>() == Approx(bytes / 1e3 / 5));
  // 100 bytes in a second to the other machine, beside the step but for its collectives.
  const json plain_far = planned.plan(options + with_host(2, ""));
  const json far = kept("", 2, "");
  CHECK(snapshot(far) == Approx(4 * bytes));
  const double free =
      plain_far.at("seconds").get<double>() - plain_far.at("communicating_seconds").get<double>();
  const double waiting = plain_far.at("waiting_seconds").get<double>();
  CHECK(free > 0);
  CHECK(waiting > 0);
  CHECK(far.at("keeping_seconds").get<double>() ==
        Approx(std::max(std::min(bytes / 100, waiting), bytes / 100 - free)));
  const json alone = kept("train.heal_copies=1 ", 2, "");
  CHECK(snapshot(alone) == Approx(2 * bytes));
  CHECK(alone.at("keeping_seconds").get<double>() == Approx(2 * bytes / 1e18));
}
