#include "machines.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "catch.hpp"
#include "free_port.hpp"

namespace faults {

Words on_machine(std::size_t number, std::size_t machines, int port) {
  return {"--machines", std::to_string(machines),           "--machine", std::to_string(number),
          "--meet",     "localhost:" + std::to_string(port)};
}

Machines::Machines(const Link* link) : port_(tessera::testing::free_port()), link_(link) {}

Machines::Machines(const RunFolder& folder, const std::vector<Words>& commands, const Link* link)
    : Machines(link) {
  for (std::size_t m = 0; m < commands.size(); ++m) {
    start(folder, commands[m], m, commands.size());
  }
}

void Machines::start(const RunFolder& folder, const Words& command, std::size_t number,
                     std::size_t machines, const std::string& wait) {
  programs_.push_back(program(folder, command, number, machines, wait));
}

void Machines::lose(std::size_t number) const { programs_[number]->signal(SIGKILL); }

void Machines::replace(const RunFolder& folder, const Words& command, std::size_t number) {
  programs_[number] = program(folder, command, number, programs_.size(), "60");
}

std::unique_ptr<Program> Machines::spare(const RunFolder& folder, const Words& command,
                                         std::size_t machines) const {
  return std::make_unique<Program>(
      folder,
      with(command, {"--machines", std::to_string(machines), "--spare", "--meet",
                     "localhost:" + std::to_string(port_)}),
      StartOptions{.environment = {{"TESSERA_MACHINE", "spare"}, {"TESSERA_TIMEOUT", "20"}}});
}

void Machines::replace(std::size_t number, std::unique_ptr<Program> spare) {
  programs_[number] = std::move(spare);
}

std::vector<Result> Machines::wait(double limit) {
  std::vector<Result> results;
  for (const auto& program : programs_) {
    results.push_back(program->wait(limit));
    CHECK(results.back().left_running == 0);
  }
  return results;
}

std::unique_ptr<Program> Machines::program(const RunFolder& folder, const Words& command,
                                           std::size_t number, std::size_t machines,
                                           const std::string& wait) const {
  StartOptions options{.environment = {{"TESSERA_MACHINE", "m" + std::to_string(number)},
                                       {"TESSERA_TIMEOUT", wait}}};
  Words words = with(command, on_machine(number, machines, port_));
  if (link_ != nullptr) {
    options.launcher = link_->launcher(number);
    options.environment["TESSERA_KEY"] = std::string(64, '5');
    words.back() = link_->address(0) + ":" + std::to_string(port_);
  }
  return std::make_unique<Program>(folder, words, options);
}

Kind steps(Kind kind, std::int64_t steps) {
  kind.steps = steps;
  kind.name += ", " + std::to_string(steps) + " steps";
  return kind;
}

bool trains(const RunFolder& folder, std::size_t steps) {
  return within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= steps; });
}

void all_say(const std::vector<Result>& results, int code, const std::string& text) {
  for (const Result& result : results) {
    INFO(result.out << result.error);
    CHECK(result.code == code);
    CHECK(count(result.error, text) == 1);
    CHECK(count(result.error, "error:") == (code == 130 ? 0 : 1));
  }
}

Kind of_machines(int machines) {
  constexpr std::int64_t steps = 80;
  const std::string ranks = std::to_string(machines);
  return {"FSDP on " + ranks + " machines", static_cast<std::size_t>(machines),
          with(sharded.arguments, {"mesh.shape=[" + ranks + "]", "train.batch=6"}), steps};
}

bool heal(Machines& machines, const std::vector<std::size_t>& numbers, int times) {
  return within(20, [&] {
    return std::ranges::all_of(numbers, [&](std::size_t m) {
      return count(machines[m].error(), "the run heals (") >= times;
    });
  });
}

void all_end_as(const RunFolder& folder, Machines& machines, const Ending& expected) {
  for (const Result& result : machines.wait()) {
    INFO(result.out << result.error);
    CHECK(result.code == 0);
    CHECK(count(result.error, "error:") == 0);
  }
  CHECK(ending_of(folder) == expected);
}

}  // namespace faults
