// TensorBoard's event files, and the commands that show several runs: `runs` and `plot`.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tessera/protobuf.hpp>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

import tessera.base;
import tessera.runs;

using tessera::testing::small_model;
using namespace tessera;
using namespace trainer_test;

namespace {

/// By its definition, bit by bit.
std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1U) != 0 ? crc >> 1U ^ 0x82f63b78U : crc >> 1U;
    }
  }
  return ~crc;
}

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = slow_crc32c(bytes);
  return (crc >> 15U | crc << 17U) + 0xa282ead8U;
}

struct Event {
  std::int64_t step = 0;
  double time = 0;
  std::string version;
  bool restarts = false;
  std::map<std::string, float> scalars;
};

Event event_of(std::string_view bytes) {
  Event event;
  while (const auto field = protobuf::take_field(bytes)) {
    switch (field->number) {
      case 1:
        event.time = field->as_double();
        break;
      case 2:
        event.step = static_cast<std::int64_t>(field->value);
        break;
      case 3:
        event.version = field->bytes;
        break;
      case 5: {
        std::string_view values = field->bytes;
        while (const auto value = protobuf::take_field(values)) {
          std::string_view parts = value->bytes;
          const auto tag = protobuf::take_field(parts);
          const auto number = protobuf::take_field(parts);
          event.scalars[std::string(tag->bytes)] = number->as_float();
        }
        break;
      }
      case 7: {
        std::string_view log = field->bytes;
        event.restarts = protobuf::take_field(log)->value == 1;
        break;
      }
      default:
        FAIL("an unknown field");
    }
  }
  CHECK(bytes.empty());
  return event;
}

/// The events of a file, whose checksums are right.
std::vector<Event> events_of(const std::filesystem::path& file) {
  const std::string bytes = read_file(file);
  std::vector<Event> events;
  std::size_t at = 0;
  const auto word = [&](std::size_t place) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes.data() + place, sizeof value);
    return value;
  };
  while (at + 16 <= bytes.size()) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    REQUIRE(word(at + 8) == masked({bytes.data() + at, 8}));
    REQUIRE(length <= bytes.size() - at - 16);
    const std::string_view event(bytes.data() + at + 12, length);
    REQUIRE(word(at + 12 + length) == masked(event));
    events.push_back(event_of(event));
    at += 16 + length;
  }
  CHECK(at == bytes.size());
  return events;
}

std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  const std::string text = read_file(file);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(nlohmann::json::parse(text.substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

/// Trains a small model in FOLDER/NAME.
Result train(const Folder& folder, const std::string& name, const std::string& more) {
  const std::string at = (folder.path() / name).string();
  folder.write("text.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  folder.write(name + ".toml",
               small_model({.dim = 16, .layers = 1, .heads = 2}) +
                   "[data]\ntext = [\"text.txt\"]\nseq_len = 16\nvalidation = 0.1\n"
                   "validate_every = 2\n[train]\nsteps = 4\nbatch = 2\n[log]\nmetrics = \"" +
                   at + "/metrics.jsonl\"\ntensorboard = \"" + at +
                   "/events\"\n[checkpoint]\nfolder = \"" + at + "/checkpoints\"\n");
  return run_program("train '" + (folder.path() / (name + ".toml")).string() + "' " + more);
}

}  // namespace

TEST_CASE("CRC-32C is that of its definition") {
  CHECK(runs::crc32c("123456789") == 0xe3069283U);  // the check value of its catalogues
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    CHECK(runs::crc32c(bytes) == slow_crc32c(bytes));
    bytes += static_cast<char>(i * 37);
  }
}

TEST_CASE("event files have the numbers of the metrics file, and a continued run goes on") {
  const Folder folder;
  const Result first = train(folder, "run", "train.steps=3 checkpoint.every=2");
  INFO(first.error);
  REQUIRE(first.code == 0);
  const std::filesystem::path at = folder.path() / "run";
  auto files = event_files(at / "events");
  REQUIRE(files.size() == 1);
  has(files[0].filename().string(), "events.out.tfevents.");
  const std::vector<Event> events = events_of(files[0]);
  const std::vector<nlohmann::json> lines = lines_of(at / "metrics.jsonl");
  REQUIRE(events.size() == 4);
  CHECK(events[0].version == "brain.Event:2");
  CHECK(events[0].time > 1.7e9);
  for (std::size_t i = 0; i < 3; ++i) {
    const Event& event = events[i + 1];
    CHECK(event.step == lines[i].at("step"));
    for (const char* name : {"loss", "grad_norm", "lr", "tokens_per_second"}) {
      CHECK(event.scalars.at(name) == lines[i].at(name).get<float>());
    }
    CHECK(event.scalars.contains("validation_loss") == lines[i].contains("validation_loss"));
  }
  // From step 2 on: what the first file has of step 3 is to be left out.
  std::filesystem::remove_all(at / "checkpoints/step-00000003");
  REQUIRE(train(folder, "run", "train.steps=4").code == 0);
  files = event_files(at / "events");
  REQUIRE(files.size() == 2);
  std::vector<Event> second =
      events_of(files[0] == event_files(at / "events")[0] ? files[1] : files[0]);
  if (!second.at(1).restarts) {
    second = events_of(files[0]);
  }
  REQUIRE(second.size() == 4);
  CHECK(second[1].restarts);
  CHECK(second[1].step == 3);
  CHECK(second[2].step == 3);
  CHECK(second[3].step == 4);
  has(train(folder, "run", "log.tensorboard=/dev/null/x").error, "log.tensorboard");
}

TEST_CASE("the runs of a folder are a table, and their curves a picture") {
  const Folder folder;
  REQUIRE(train(folder, "a", "").code == 0);
  REQUIRE(train(folder, "b", "optimizer.lr=1e-2").code == 0);
  folder.write("notes.jsonl", "{\"other\": 1}\n");
  const std::string at = "'" + folder.path().string() + "'";
  const Result table = run_program("runs " + at);
  CHECK(table.code == 0);
  has(table.out, "run  model");
  has(table.out, "batch 2");
  has(table.out, "4 of 4");
  const auto runs = nlohmann::json::parse(run_program("runs --json " + at).out);
  REQUIRE(runs.size() == 2);
  const auto lines = lines_of(folder.path() / "b/metrics.jsonl");
  CHECK(runs[1].at("run") == "b");
  CHECK(runs[1].at("loss") == lines.back().at("loss"));
  double best = 1e9;
  for (const auto& line : lines) {
    best = line.contains("validation_loss")
               ? std::min(best, line.at("validation_loss").get<double>())
               : best;
  }
  CHECK(runs[1].at("best_validation") == best);
  has(runs[1].at("config").get<std::string>(), "lr 0.01");

  const std::string picture = (folder.path() / "curves.svg").string();
  const std::string both =
      "'" + (folder.path() / "a").string() + "' '" + (folder.path() / "b").string() + "'";
  const Result plot = run_program("plot " + both + " --svg '" + picture + "'");
  INFO(plot.error);
  REQUIRE(plot.code == 0);
  has(plot.out, "step");
  has(plot.out, "picture written");
  const std::string svg = read_file(picture);
  has(svg, "<svg");
  has(svg, "gnuplot_plot_2");  // two curves
  CHECK(run_program("plot --metric validation_loss --average 2 " + both).code == 0);

  has(run_program("plot " + at).error, "there are several metrics files");
  has(run_program("plot '" + (folder.path() / "none").string() + "'").error, "it cannot be read");
  has(run_program("plot '" + (folder.path() / "notes.jsonl").string() + "'").error,
      "notes.jsonl:1: it is not a line of a metrics file");
  has(run_program("plot --average 9 " + both).error, "it has no loss of 9 steps");
  has(run_program("plot " + both, "PATH=/nowhere ").error, "install gnuplot");
  has(run_program("runs '" + (folder.path() / "a/checkpoints").string() + "'").error,
      "there is no metrics file");
}
