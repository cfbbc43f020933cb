// Metrics, progress, tables and what the machine has.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;

namespace runs = tessera::runs;
using namespace tessera::app;
using tessera::testing::lines_of;
using trainer_test::Folder;
using trainer_test::read_file;

namespace {

runs::StepMetrics step_of(std::int64_t step) {
  runs::StepMetrics m;
  m.step = step;
  m.loss = 1.0 / static_cast<double>(step + 2);
  m.grad_norm = 0.1 + 0.2;
  m.lr = 3e-4;
  m.tokens_per_second = 8123.456789;
  m.seconds = 0.5;
  m.memory_bytes = 327155712;
  return m;
}

std::vector<int> steps_in(const std::filesystem::path& file) {
  std::vector<int> steps;
  for (const std::string& line : lines_of(read_file(file))) {
    steps.push_back(nlohmann::json::parse(line).at("step").get<int>());
  }
  return steps;
}

}  // namespace

TEST_CASE("metrics are JSON whose numbers read back as the same bits") {
  runs::StepMetrics m = step_of(3);
  m.validation_loss = static_cast<double>(1.1F);
  m.memory_peaks = {{"total", 300}, {"gradient", 100}};
  const auto json = nlohmann::json::parse(to_json(m));
  CHECK(json["loss"].get<double>() == 0.2);
  CHECK(json["grad_norm"].get<double>() == 0.1 + 0.2);
  CHECK(static_cast<float>(json["validation_loss"].get<double>()) == 1.1F);
  CHECK(json["memory_bytes"].get<std::uint64_t>() == 327155712U);
  CHECK(json["memory_peaks"] == nlohmann::json({{"total", 300}, {"gradient", 100}}));
  CHECK(json.size() == 9);
  CHECK_FALSE(nlohmann::json::parse(to_json(step_of(1))).contains("validation_loss"));
  m.save_seconds = 0.25;
  CHECK(nlohmann::json::parse(to_json(m))["save_seconds"].get<double>() == 0.25);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  CHECK(nlohmann::json::parse(to_json(m))["loss"].is_null());
}

TEST_CASE("a resumed run's metrics hold no step twice") {
  const Folder folder;
  const auto file = folder.path() / "runs" / "metrics.jsonl";
  {
    runs::MetricsWriter writer(file, 0);
    for (int step = 1; step <= 5; ++step) {
      writer.write(step_of(step));
    }
  }
  CHECK(steps_in(file) == std::vector<int>{1, 2, 3, 4, 5});
  const std::string third = lines_of(read_file(file))[2];
  std::FILE* torn = std::fopen(file.c_str(), "a");
  std::fputs("{\"step\": 2, \"lo", torn);  // the process was killed while it wrote
  std::fclose(torn);
  {
    runs::MetricsWriter writer(file, 3);
    CHECK(steps_in(file) == std::vector<int>{1, 2, 3});
    writer.write(step_of(4));
  }
  CHECK(steps_in(file) == std::vector<int>{1, 2, 3, 4});
  CHECK(lines_of(read_file(file))[2] == third);
  {
    runs::MetricsWriter writer(file, 0);
  }
  CHECK(read_file(file).empty());
  CHECK_FALSE(std::filesystem::exists(file.string() + ".new"));
}

TEST_CASE("metrics go into a pipe without replacing it") {
  const Folder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  {
    runs::MetricsWriter(pipe, 3).write(step_of(4));
  }
  char text[1000];
  const auto count = ::read(reader, text, sizeof(text));
  ::close(reader);
  REQUIRE(count > 0);
  CHECK(std::string(text, static_cast<std::size_t>(count)) == to_json(step_of(4)) + "\n");
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("metrics that cannot be written are an error of the run") {
  const Folder folder;
  const std::string file = folder.write("file", "x");
  CHECK_THROWS_AS(runs::MetricsWriter(file + "/metrics.jsonl", 0), tessera::Error);
}

TEST_CASE("elsewhere than on a terminal progress is a plain line every few steps") {
  std::string text;
  const runs::ProgressOutput out{.write = [&](const std::string& part) { text += part; }};
  {
    runs::Progress progress(0, 25, 10, out);
    for (int step = 1; step <= 25; ++step) {
      runs::StepMetrics m = step_of(step);
      if (step == 12) {
        m.validation_loss = 1.5;
      }
      progress.step(m, 0.62);
    }
    progress.note("checkpoint saved");
  }
  const auto lines = lines_of(text);
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] ==
        "step  1/25  loss 0.3333  grad 0.3  8.12 k tokens/s  62% of GEMM  312.0 MiB  12 s left");
  CHECK(lines[1].starts_with("step 10/25"));
  CHECK(lines[2].find("validation 1.5000") != std::string::npos);
  CHECK(lines[3].starts_with("step 20/25"));
  CHECK(lines[4].starts_with("step 25/25"));
  CHECK(lines[4].ends_with("0.0 s left"));
  CHECK(lines[5] == "checkpoint saved");
}

TEST_CASE("after a share above 100% of the ceiling none is shown any more, and a line says why") {
  CHECK(runs::reliable_share(1.0) == 1.0);
  CHECK_FALSE(runs::reliable_share(1.0001).has_value());
  std::string text;
  const runs::ProgressOutput out{.write = [&](const std::string& part) { text += part; }};
  {
    runs::Progress progress(0, 4, 1, out);
    int step = 0;
    for (const double share : {0.9, 1.8, 0.5, 1.8}) {
      progress.step(step_of(++step), share);
    }
  }
  const auto lines = lines_of(text);
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].find("90% of GEMM") != std::string::npos);
  CHECK(lines[1].starts_with("the GEMM ceiling, measured at the start, is below"));
  for (std::size_t i = 2; i < lines.size(); ++i) {
    INFO(lines[i]);
    CHECK(lines[i].find("GEMM") == std::string::npos);
    CHECK(lines[i].find("tokens/s  312.0 MiB") != std::string::npos);
  }
}

TEST_CASE("a NaN is shown as nan, whatever its sign") {
  const double nan = -std::numeric_limits<double>::quiet_NaN();
  runs::ProgressLine line{step_of(1), 25, nan, nan};
  line.metrics.loss = line.metrics.grad_norm = line.metrics.tokens_per_second = nan;
  line.metrics.validation_loss = nan;
  CHECK(runs::format_progress(line) ==
        "step  1/25  loss nan  grad nan  nan tokens/s  nan% of GEMM  312.0 MiB  validation nan  ? "
        "left");
  CHECK(trainer_test::input_error([] {
          parse_config("optimizer.lr = -nan", "run.toml");
        }).find("got the number nan") != std::string::npos);
}

TEST_CASE("a live line is cut to the terminal's width") {
  CHECK(runs::fit_line("step 1/10", 6) == "step 1");
  CHECK(runs::fit_line("step", 80) == "step");
  CHECK(runs::fit_line("step", 0).empty());
}

TEST_CASE("tables align their columns by characters") {
  CHECK(format_table({{"a", "b", "c"}, {"länger", "x"}, {"", "", "last"}}, "") ==
        "a       b  c\n"
        "länger  x\n"
        "           last\n");
  CHECK(tessera::format_count(803) == "803");
  CHECK(tessera::format_count(803712) == "804 k");
  CHECK(tessera::format_count(6093000) == "6.09 M");
  CHECK(tessera::format_count(1.24e9) == "1.24 B");
  CHECK(tessera::format_count(9999999) == "10.0 M");
  CHECK(tessera::format_duration(0.44) == "0.4 s");
  CHECK(tessera::format_duration(59) == "59 s");
  CHECK(tessera::format_duration(59.9) == "1:00");
  CHECK(tessera::format_duration(3723) == "1:02:03");
  CHECK(tessera::format_duration(-1) == "?");
}

TEST_CASE("this process's memory grows with what it touches") {
  const runs::Memory before = runs::process_memory();
  std::vector<char> block(64 << 20);
  std::memset(block.data(), 1, block.size());
  const runs::Memory after = runs::process_memory();
  CHECK(block[12345] == 1);
  CHECK(after.resident >= before.resident + (60U << 20));
  CHECK(after.peak >= after.resident);
}

TEST_CASE("the machine's limits are told") {
  const Machine here = look_at_machine();
  CHECK(here.usable_cores >= 1);
  CHECK(here.usable_cores <= here.cores);
  CHECK(here.memory > (64U << 20));
  CHECK(simd_of_flags("fpu avx2 fma avx512f") ==
        std::vector<std::string>{"AVX2", "FMA", "AVX-512"});
  Machine small;
  small.cores = 8;
  small.usable_cores = 8;
  small.core_quota = 1.5;
  small.memory = small.memory_available = 8ULL << 30;
  std::string text;
  for (const std::string& line : advice(small)) {
    text += line + "\n";
  }
  CHECK(text.find("1.5 cores' time of 8") != std::string::npos);
  CHECK(text.find("Up to 1 rank") != std::string::npos);
  CHECK(text.find("No AVX2") != std::string::npos);
  CHECK(text.find("/dev/shm") == std::string::npos);  // the ranks' memory is not there
}
