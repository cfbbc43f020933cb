// The sink `command`: programs that read all, little, nothing, or end too early.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;

using namespace tessera;
using namespace tessera::sinks;
using nlohmann::json;
using tessera::testing::error_of;
using tessera::testing::Folder;
using tessera::testing::read_if_there;

namespace {

std::unique_ptr<Sink> command_of(const json& command, double finish_seconds = 5) {
  return load_sink("command",
                   json{{"command", command}, {"finish_seconds", finish_seconds}}.dump());
}
std::unique_ptr<Sink> shell(const std::string& script, double finish_seconds = 5) {
  return command_of({"sh", "-c", script}, finish_seconds);
}

std::vector<Event> steps(int count, std::size_t text = 0) {
  std::vector<Event> events = {{.time = 1, .content = RunStart{.run = "r"}}};
  for (int i = 1; i <= count; ++i) {
    events.push_back(
        {.time = 1, .content = StepNumbers{.step = i, .numbers = {{"loss", 0.5 * i}}}});
    if (text > 0) {
      events.push_back({.time = 1, .content = LogLine{.text = std::string(text, 'x')}});
    }
  }
  return events;
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a program reads each event as a line of JSON, and the end of them") {
  const Folder folder;
  const auto sink = shell("cat > " + (folder / "lines"));
  sink->check();
  const std::vector<Event> events = steps(1000);
  sink->take(std::span(events).first(500));
  sink->take(std::span(events).subspan(500));
  sink->finish(5);
  std::string expected;
  for (const Event& event : events) {
    expected += to_json(event) + "\n";
  }
  CHECK(read_if_there(folder / "lines") == expected);
}

TEST_CASE("a program that does not read is waited for, and gets every line once") {
  const Folder folder;
  const auto sink = shell("while test ! -e " + (folder / "go") + "; do sleep 0.02; done; cat > " +
                          (folder / "lines"));
  const std::vector<Event> events = steps(300, 1000);  // more than a pipe holds
  int times = 0;
  while (true) {
    try {
      sink->take(events);
      break;
    } catch (const UnavailableError& error) {
      CHECK(has(error.what(), "the program does not read its input"));
      REQUIRE(++times < 20);
      folder.write("go", "");
    }
  }
  CHECK(times >= 1);
  sink->finish(5);
  std::string expected;
  for (const Event& event : events) {
    expected += to_json(event) + "\n";
  }
  CHECK(read_if_there(folder / "lines") == expected);
}

TEST_CASE("a program that ends too early is an error, again and again") {
  const auto sink = shell("exit 7");
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::vector<Event> events = steps(10);
  std::string error = "no error";
  for (int i = 0; i < 100 && error == "no error"; ++i) {
    error = error_of([&] { sink->take(events); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(has(error, "command: the program has ended with exit code 7"));
  CHECK(has(error_of([&] { sink->take(events); }), "exit code 7"));
  CHECK(has(error_of([&] { sink->finish(5); }), "exit code 7"));
}

TEST_CASE("a program that fails at the end is an error, and one that stays is ended") {
  const std::vector<Event> events = steps(10);
  const auto fails = shell("cat > /dev/null; exit 3");
  fails->take(events);
  CHECK(has(error_of([&] { fails->finish(5); }), "the program has ended with exit code 3"));

  const Folder folder;
  const auto asked = shell("trap 'echo asked > " + (folder / "asked") +
                               "; exit 0' TERM; cat > /dev/null; while :; do sleep 0.02; done",
                           1);
  asked->take(events);
  asked->finish(1);
  CHECK(read_if_there(folder / "asked") == "asked\n");

  auto stays = shell("echo $$ > " + (folder / "pid") +
                         "; trap '' TERM; cat > /dev/null; while :; do sleep 0.02; done",
                     0.3);
  stays->take(events);
  const auto start = std::chrono::steady_clock::now();
  CHECK(has(error_of([&] { stays->finish(0.3); }), "the program did not end within 0.3 s"));
  stays.reset();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(3));
  const std::string pid = read_if_there(folder / "pid");
  REQUIRE(pid.size() > 1);
  CHECK_FALSE(std::filesystem::exists("/proc/" + pid.substr(0, pid.size() - 1)));
}

TEST_CASE("a command that is wrong is refused before anything starts") {
  CHECK(has(error_of([] { command_of({"/no/such/program"})->check(); }),
            "command: there is no program /no/such/program"));
  CHECK(has(error_of([] { command_of({"no-such-program-xyz"})->check(); }), "no-such-program-xyz"));
  CHECK(has(error_of([] { command_of(json::array()); }), "command must be a program"));
  CHECK(has(error_of([] { command_of({"sh"}, -1); }), "finish_seconds"));
  CHECK(
      has(error_of([] { load_sink("command", R"({"command": ["sh"], "comand": 1})"); }), "comand"));
  CHECK(has(error_of([] { load_sink("comand"); }), "did you mean 'command'"));
}

TEST_CASE("a program that is not there is no end of a run") {
  const auto sink = command_of({"/no/such/program"});
  const std::vector<Event> events = steps(1);
  CHECK(has(error_of([&] { sink->take(events); }), "/no/such/program cannot be started"));
  sink->finish(1);
}
