module;
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;

// A sink: whether it takes whatever a run may tell, in time, with and without its receiver.
namespace tessera::plugin_suite {
namespace {

using sinks::Event;
using sinks::Sink;

constexpr double longest_call = 15;  // seconds: the end of a run waits for it

/// Makes it without options; one that needs some cannot be tried.
std::unique_ptr<Sink> made(const std::string& name) {
  try {
    return sinks::load_sink(name);
  } catch (const Error& error) {
    throw SkippedCheck{fmt::format("it cannot be made without options: {}", error.what())};
  }
}

std::ptrdiff_t threads_here() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

/// A run whose numbers, names and texts are of all kinds.
std::vector<Event> odd_events() {
  std::string bytes;
  for (int byte = 1; byte < 256; ++byte) {
    bytes += static_cast<char>(byte);
  }
  sinks::NamedNumbers numbers = {{"loss", 1.5},
                                 {"nan", std::nan("")},
                                 {"infinite", std::numeric_limits<double>::infinity()},
                                 {"large", 1e300},
                                 {"", 0},
                                 {"with/slash and blank", 1},
                                 {bytes, 2},
                                 {std::string(5000, 'n'), 3}};
  for (int i = 0; i < 2000; ++i) {
    numbers.emplace_back(fmt::format("many/{}", i), i);
  }
  std::vector<Event> events = {
      {.time = 1,
       .content = sinks::RunStart{.run = "0123456789abcdef0123456789abcdef",
                                  .name = bytes,
                                  .config = R"({"train": {"steps": 3}})",
                                  .steps = 3}}};
  for (int step = 1; step <= 3; ++step) {
    events.push_back(
        {.time = 1.0 + step, .content = sinks::StepNumbers{.step = step, .numbers = numbers}});
    events.push_back({.time = 1.0 + step,
                      .content = sinks::PhaseSpan{.name = bytes, .step = step, .seconds = 1}});
    events.push_back(
        {.time = 1.0 + step, .content = sinks::LogLine{.level = LogLevel::warning, .text = bytes}});
    events.push_back({.time = 1.0 + step, .content = sinks::LogLine{.text = {}}});
  }
  return events;
}

/// Calls it; empty: it returned in time, or threw an exception that a feed expects.
std::string problem_of(const std::string& what, const std::function<void()>& call) {
  trying(what);
  const auto start = std::chrono::steady_clock::now();
  try {
    call();
  } catch (const std::exception& error) {
    note(fmt::format("{}: {}", what, error.what()));
  } catch (...) {
    return fmt::format("{} throws what is not a std::exception", what);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return seconds <= longest_call ? ""
                                 : fmt::format("{} took {:.1f} s (expected at most {:.0f})", what,
                                               seconds, longest_call);
}

std::string starts_no_thread(const std::string& name) {
  const std::ptrdiff_t before = threads_here();
  const std::unique_ptr<Sink> sink = made(name);
  if (threads_here() != before) {
    return "its factory starts a thread, and ranks are started after it";
  }
  const std::string problem = problem_of("check()", [&] { sink->check(); });
  return !problem.empty()           ? problem
         : threads_here() != before ? "check() leaves a thread, and ranks are started after it"
                                    : "";
}

std::string takes_odd_events(const std::string& name) {
  const std::unique_ptr<Sink> sink = made(name);
  const std::vector<Event> events = odd_events();
  std::vector<std::string> problems;
  const auto add = [&](std::string problem) {
    if (!problem.empty()) {
      problems.push_back(std::move(problem));
    }
  };
  add(problem_of("take() of the start", [&] { sink->take(std::span(events).first(1)); }));
  add(problem_of("take() of odd events", [&] { sink->take(std::span(events).subspan(1)); }));
  const std::vector<Event> end = {
      {.time = 9, .content = sinks::RunEnd{.outcome = sinks::Outcome::failed, .text = "why"}}};
  add(problem_of("take() of the end", [&] { sink->take(end); }));
  add(problem_of("finish()", [&] { sink->finish(sink->patience()); }));
  return some_of(problems);
}

std::string takes_events_again(const std::string& name) {
  const std::unique_ptr<Sink> sink = made(name);
  const std::vector<Event> events = odd_events();
  for (int i = 0; i < 3; ++i) {
    const std::string problem =
        problem_of("take() of the same events", [&] { sink->take(std::span(events).first(2)); });
    if (!problem.empty()) {
      return problem;
    }
  }
  return problem_of("finish()", [&] { sink->finish(sink->patience()); });
}

std::string ends_without_a_run(const std::string& name) {
  std::unique_ptr<Sink> sink = made(name);
  const std::string problem = problem_of("finish()", [&] { sink->finish(0); });
  const std::string destroyed = problem_of("its destructor", [&] { sink.reset(); });
  return problem.empty() ? destroyed : problem;
}

std::string refuses_unknown_options(const std::string& name) {
  made(name);
  try {
    sinks::load_sink(name, R"({"no such option": 1})");
  } catch (const Error&) {
    return "";
  }
  return "an option that it does not have is taken";
}

}  // namespace

std::vector<SuiteCheck> sink_suite(const std::string& name) {
  const auto of = [&](std::string (*check)(const std::string&)) {
    return [name, check] { return check(name); };
  };
  return {{"it starts no thread before it takes events", of(starts_no_thread)},
          {"it takes whatever a run tells, in time", of(takes_odd_events)},
          {"events may come again", of(takes_events_again)},
          {"a run may end before it has begun", of(ends_without_a_run)},
          {"an unknown option is an error", of(refuses_unknown_options)}};
}

}  // namespace tessera::plugin_suite
