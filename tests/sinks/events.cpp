// Events as lines of JSON.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"

import tessera.base;
import tessera.sinks;

using namespace tessera;
using namespace tessera::sinks;
using nlohmann::json;

namespace {

json line_of(EventContent content) {
  const std::string text = to_json({.time = 1700000000.25, .content = std::move(content)});
  CHECK(text.find('\n') == std::string::npos);
  return json::parse(text);
}

}  // namespace

TEST_CASE("each event is one line with its time and its members") {
  CHECK(line_of(RunStart{.run = "r",
                         .name = "n",
                         .version = "0.1.0",
                         .host = "h",
                         .config = R"({"train":{"steps":3}})",
                         .ranks = 2,
                         .steps = 3,
                         .done = 1,
                         .continues = true}) ==
        json::parse(R"({"time":1700000000.25,"event":"start","run":"r","name":"n",
          "version":"0.1.0","host":"h","ranks":2,"steps":3,"done":1,"continues":true,
          "config":{"train":{"steps":3}}})"));
  CHECK(line_of(StepNumbers{.step = 7, .numbers = {{"loss", 2.5}, {"memory_peaks/total", 4096}}}) ==
        json::parse(R"({"time":1700000000.25,"event":"step","step":7,
          "numbers":{"loss":2.5,"memory_peaks/total":4096}})"));
  CHECK(line_of(PhaseSpan{.name = "validation", .step = 7, .seconds = 0.5}) ==
        json::parse(R"({"time":1700000000.25,"event":"span","name":"validation","step":7,
          "seconds":0.5})"));
  CHECK(line_of(LogLine{.level = LogLevel::warning, .text = "two\nlines \"quoted\""}) ==
        json::parse(R"({"time":1700000000.25,"event":"log","level":"warning",
          "text":"two\nlines \"quoted\""})"));
  CHECK(line_of(RunEnd{.outcome = Outcome::interrupted, .step = 7, .text = "why"}) ==
        json::parse(R"({"time":1700000000.25,"event":"end","outcome":"interrupted","step":7,
          "text":"why"})"));
}

TEST_CASE("numbers round-trip, and those that are not finite are null") {
  const double odd = 0.1 + 0.2;
  const json line = line_of(StepNumbers{
      .step = 1,
      .numbers = {
          {"odd", odd}, {"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}}});
  CHECK(line["numbers"]["odd"].get<double>() == odd);
  CHECK(line["numbers"]["nan"].is_null());
  CHECK(line["numbers"]["inf"].is_null());
}

TEST_CASE("texts that are not UTF-8 become lines of JSON") {
  const json line = line_of(LogLine{.text = "a\xff\xfe z"});
  CHECK(line["text"].get<std::string>().find(" z") != std::string::npos);
}
