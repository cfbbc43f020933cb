// Records of runs: what they keep, and texts that somebody else has written.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.runs;

using namespace tessera;
using namespace tessera::runs;

namespace {

using Json = nlohmann::json;

Session session(std::int64_t from, std::int64_t to, const std::string& seed = "1") {
  Session one{.from = from, .to = to, .begun = "2026-12-01T00:00:00.000Z"};
  one.command = {"tessera", "train", "a.toml"};
  one.config = {R"({"train":{"seed":)" + seed + "}}"};
  one.fingerprint = {R"({"data.content":"3 tokens abc"})"};
  one.plugins = {{.name = "FSDP", .version = "0.1.0", .hash = "12"}};
  one.ledger[TimeUse::compute] = 1.5;
  return one;
}

/// As RecordWriter does, at once or after every few steps.
std::vector<CurvePoint> thinned(std::int64_t steps, std::int64_t validate_every,
                                std::int64_t thin_every) {
  std::vector<CurvePoint> curve;
  for (std::int64_t step = 1; step <= steps; ++step) {
    curve.push_back({.step = step, .loss = static_cast<double>(step)});
    if (validate_every > 0 && step % validate_every == 0) {
      curve.back().validation_loss = 0.5;
    }
    if (step % thin_every == 0 || step == steps) {
      thin_curve(curve);
    }
  }
  return curve;
}

}  // namespace

TEST_CASE("a record that is written is read again") {
  RunRecord record;
  record.sessions = {session(0, 4), session(4, 6), session(6, 9, "2")};
  record.left_out = 3;
  record.curve = {{.step = 1, .loss = 0.1, .grad_norm = 1e300, .lr = 3e-4},
                  {.step = 3,
                   .loss = std::numeric_limits<double>::quiet_NaN(),
                   .grad_norm = 2,
                   .lr = 0,
                   .validation_loss = 1.0 / 3}};
  const std::string text = to_json(record);
  // The second session has the config of neither neighbour that is written twice.
  const Json json = Json::parse(text);
  CHECK_FALSE(json["sessions"][0].contains("config"));
  CHECK(json["sessions"][1].contains("config"));
  CHECK_FALSE(json["sessions"][1].contains("fingerprint"));
  const ReadRecord read = read_record(text);
  REQUIRE(read.problem.empty());
  CHECK(to_json(read.record) == text);
  CHECK(read.record.sessions[0].config.text == record.sessions[0].config.text);
  CHECK(read.record.sessions[2].fingerprint.text == record.sessions[2].fingerprint.text);
  CHECK(read.record.curve[1].validation_loss == 1.0 / 3);
  CHECK(std::isnan(read.record.curve[1].loss));
  CHECK(read.record.sessions[0].ledger[TimeUse::compute] == 1.5);
}

TEST_CASE("a curve of any length has few points, whenever it is thinned") {
  for (const std::int64_t steps : {1, 399, 400, 401, 1000, 54'321}) {
    for (const std::int64_t validate_every : {0, 1, 7, 64, 5000}) {
      const std::vector<CurvePoint> curve = thinned(steps, validate_every, steps);
      std::size_t validated = 0;
      std::set<std::int64_t> kept;
      for (const CurvePoint& point : curve) {
        validated += point.validation_loss ? 1 : 0;
        kept.insert(point.step);
      }
      CHECK(validated <= most_points + 1);
      CHECK(curve.size() - validated <= most_points + 1);
      CHECK(kept.size() == curve.size());
      CHECK(curve.back().step == steps);
      // Few are all.
      if (validate_every > 0 && steps / validate_every <= 400) {
        CHECK(validated == static_cast<std::size_t>(steps / validate_every));
      }
      if (steps <= 400) {
        CHECK(curve.size() == static_cast<std::size_t>(steps));
      }
      // A run that was stopped and continued has the same ones.
      const std::vector<CurvePoint> often = thinned(steps, validate_every, 97);
      REQUIRE(often.size() == curve.size());
      for (std::size_t i = 0; i < curve.size(); ++i) {
        CHECK(often[i].step == curve[i].step);
      }
    }
  }
}

TEST_CASE("a run that is started often keeps its first start and the last ones") {
  RunRecord record;
  for (int i = 0; i < 100; ++i) {
    record.sessions.push_back(session(i, i + 1));
    limit_sessions(record);
  }
  CHECK(record.sessions.size() == most_sessions);
  CHECK(record.left_out == 100 - static_cast<std::int64_t>(most_sessions));
  CHECK(record.sessions.front().from == 0);
  CHECK(record.sessions[1].to == 100 - static_cast<std::int64_t>(most_sessions) + 2);
  CHECK(record.step() == 100);
  CHECK(read_record(to_json(record)).problem.empty());
}

TEST_CASE("no text makes more of a record than a problem") {
  RunRecord record;
  record.sessions = {session(0, 4), session(4, 6, "2")};
  record.curve = {{.step = 1, .loss = 0.5}, {.step = 2, .loss = 0.25, .validation_loss = 1}};
  const Json good = Json::parse(to_json(record));
  REQUIRE(read_record(good.dump()).problem.empty());
  // Each member of each part: absent, of each other type, and one more.
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    1e308,
                                    0.5,
                                    "text",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({1, 2, 3, 4, 5, 6})};
  std::size_t tried = 0;
  const auto attack = [&](const Json::json_pointer& at) {
    for (const Json& value : values) {
      Json bad = good;
      bad[at] = value;
      const ReadRecord read = read_record(bad.dump());
      CHECK((read.problem.empty() || read.record.sessions.empty()));
      ++tried;
    }
    Json bad = good;
    bad.at(at.parent_pointer()).erase(at.back());
    read_record(bad.dump());
  };
  for (const auto& [name, value] : good.items()) {
    attack(Json::json_pointer("/" + name));
  }
  for (const auto& [name, value] : good["sessions"][1].items()) {
    attack(Json::json_pointer("/sessions/1/" + name));
    Json bad = good;
    bad["sessions"][1].erase(name);
    CHECK_FALSE(read_record(bad.dump()).problem.empty());
  }
  CHECK(tried > 150);
  // Every cut.
  const std::string text = good.dump();
  for (std::size_t length = 0; length < text.size(); ++length) {
    CHECK_FALSE(read_record(text.substr(0, length)).problem.empty());
  }
  Json bad = good;
  bad["sessions"][1]["from"] = 5;
  CHECK(read_record(bad.dump()).problem ==
        "session 2 begins at step 5, and the one before ends at "
        "step 4");
  bad = good;
  bad["curve"][1][0] = 7;
  CHECK(read_record(bad.dump()).problem == "'curve' has step 7 after step 1, of 6");
}

TEST_CASE("commands and configs in records have no outputs and no home folder") {
  ::setenv("HOME", "/home/me", 1);
  CHECK(public_path("/home/me") == "~");
  CHECK(public_path("/home/me/a/b.txt") == "~/a/b.txt");
  CHECK(public_path("/home/mean/b.txt") == "/home/mean/b.txt");
  CHECK(own_path("~/a") == "/home/me/a");
  CHECK(own_path("/~/a") == "/~/a");
  const std::string here = std::filesystem::current_path().string();
  CHECK(public_path(here + "/data/x.txt") == "data/x.txt");
  CHECK(public_command({"tessera", "train", "/home/me/run.toml", "sinks=[{token=\"s3cret\"}]",
                        "log.metrics=/tmp/s3cret", "checkpoint.folder=s3cret",
                        "data.text=[\"/home/me/a.txt\",\"/home/me/b.txt\"]", "train.seed=3"}) ==
        std::vector<std::string>{"tessera", "train", "~/run.toml", "sinks=...", "log.metrics=...",
                                 "checkpoint.folder=...", "data.text=[\"~/a.txt\",\"~/b.txt\"]",
                                 "train.seed=3"});
  RunSpec spec;
  spec.data.text = {"/home/me/a.txt"};
  spec.checkpoint.folder = "/home/me/s3cret";
  spec.log.metrics = "s3cret";
  spec.sinks.push_back({});
  spec.trace.file = "s3cret";
  const std::string config = public_config(spec);
  CHECK(config.find("s3cret") == std::string::npos);
  CHECK(config.find("/home") == std::string::npos);
  CHECK(config.find("~/a.txt") != std::string::npos);
  CHECK(config.find("\"sinks\"") == std::string::npos);
}
