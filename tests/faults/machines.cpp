// Runs of several launchers, on machines that this one plays.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "layouts.hpp"
#include "program.hpp"

using namespace faults;

namespace {

/// A port that was free a moment ago.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  REQUIRE(bind(socket, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes);
  close(socket);
  return ntohs(address.sin_port);
}

/// The words that make a launcher one of several.
Words on_machine(std::size_t number, std::size_t machines, int port) {
  return {"--machines", std::to_string(machines),           "--machine", std::to_string(number),
          "--meet",     "localhost:" + std::to_string(port)};
}

/// A launcher for each machine.
class Machines {
 public:
  /// Of each machine, the words of its command besides those of its place.
  Machines(const RunFolder& folder, const std::vector<Words>& commands) : port_(free_port()) {
    for (std::size_t m = 0; m < commands.size(); ++m) {
      start(folder, commands[m], m, commands.size());
    }
  }
  /// No launcher yet.
  Machines() : port_(free_port()) {}
  void start(const RunFolder& folder, const Words& command, std::size_t number,
             std::size_t machines, const std::string& wait = "60") {
    programs_.push_back(program(folder, command, number, machines, wait));
  }
  /// Kills a launcher, and its ranks with it, as a machine that is lost.
  void lose(std::size_t number) { programs_[number]->signal(SIGKILL); }
  /// The same command again, in the place of one that is lost.
  void replace(const RunFolder& folder, const Words& command, std::size_t number) {
    programs_[number] = program(folder, command, number, programs_.size(), "60");
  }
  Program& operator[](std::size_t m) { return *programs_[m]; }
  int port() const { return port_; }
  /// How each has ended. Nothing of them is left.
  std::vector<Result> wait(double limit = 60) {
    std::vector<Result> results;
    for (const auto& program : programs_) {
      results.push_back(program->wait(limit));
      CHECK(results.back().left_running == 0);
    }
    return results;
  }

 private:
  std::unique_ptr<Program> program(const RunFolder& folder, const Words& command,
                                   std::size_t number, std::size_t machines,
                                   const std::string& wait) const {
    return std::make_unique<Program>(
        folder, with(command, on_machine(number, machines, port_)),
        StartOptions{.environment = {{"TESSERA_MACHINE", "m" + std::to_string(number)},
                                     {"TESSERA_TIMEOUT", wait}}});
  }

  int port_;
  std::vector<std::unique_ptr<Program>> programs_;
};

Kind steps(Kind kind, std::int64_t steps) {
  kind.steps = steps;
  kind.name += ", " + std::to_string(steps) + " steps";
  return kind;
}

bool trains(const RunFolder& folder, std::size_t steps = 3) {
  return within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= steps; });
}

/// Each launcher ends with this code and says the text once.
void all_say(const std::vector<Result>& results, int code, const std::string& text) {
  for (const Result& result : results) {
    INFO(result.out << result.error);
    CHECK(result.code == code);
    CHECK(count(result.error, text) == 1);
    CHECK(count(result.error, "error:") == (code == 130 ? 0 : 1));
  }
}

/// Nobody starts.
void all_refuse(const Words& first, const Words& second, const std::string& text) {
  INFO(text);
  const RunFolder folder;
  const auto before = folder.listing();
  Machines machines(folder, {first, second});
  all_say(machines.wait(20), 2, text);
  CHECK(folder.listing() == before);
}

}  // namespace

TEST_CASE("a run on two machines has the bits of one") {
  const auto [kind, shares] = GENERATE(table<Kind, Words>(
      {{mixed, {}}, {mixed, {"3", "1"}}, {hybrid, {}}, {captured_pipeline, {}}, {captured, {}}}));
  const Kind brief = steps(kind, 12);
  const Ending& expected = undisturbed(brief);
  const RunFolder folder;
  std::vector<Words> commands(2, train(brief, {}));
  for (std::size_t m = 0; m < shares.size(); ++m) {
    commands[m] = with(commands[m], {"--here", shares[m]});
  }
  Machines machines(folder, commands);
  const std::vector<Result> results = machines.wait();
  for (const Result& result : results) {
    INFO(result.out << result.error);
    REQUIRE(result.code == 0);
    CHECK(count(result.error, "error:") == 0);
  }
  CHECK(count(results[0].out, "checkpoint saved") > 0);
  CHECK(lines_of(results[1].out).size() == 1);
  CHECK(count(results[1].out, "machine 1 of 2: starts ") == 1);
  CHECK(ending_of(folder) == expected);
}

TEST_CASE("launchers that do not fit each other all end before their ranks start") {
  const Words plain = train(mixed, {});
  all_refuse(plain, with(plain, {"optimizer.lr=0.5"}), "machine 1 (m1) has another config than");
  all_refuse(plain, with(plain, {"mesh.shape=[1,2]"}),
             "the run of machine 1 (m1) has 2 ranks, and that of machine 0 has 4");
  all_refuse(with(plain, {"--here", "1"}), plain,
             "the machines start 1 + 2 = 3 ranks, and the run");
  all_refuse(train(sharded, {"mesh.shape=[3]", "train.batch=3"}),
             train(sharded, {"mesh.shape=[3]", "train.batch=3"}),
             "the machines start 1 + 1 = 2 ranks, and the run has 3");
  all_refuse(with(plain, {"mesh.transport=shm"}), with(plain, {"mesh.transport=shm"}),
             "launchers of several machines use the transport 'tcp', and not 'shm'");
}

TEST_CASE("machines that do not come, or come twice, are named") {
  const Words plain = train(mixed, {});
  const RunFolder folder;
  {
    Machines machines;
    machines.start(folder, plain, 0, 3, "1.5");
    machines.start(folder, plain, 2, 3);
    all_say(machines.wait(20), 1, "machine 1 of 3 did not come to localhost:");
  }
  {
    Machines machines;
    machines.start(folder, plain, 1, 2, "1.5");
    all_say(machines.wait(20), 1, "machine 0 cannot be reached at localhost:");
  }
  {
    Machines machines;
    for (const std::size_t number : {0, 1, 1}) {
      machines.start(folder, plain, number, 3);
    }
    all_say(machines.wait(20), 2, "two launchers were started with --machine 1");
  }
  {
    Machines machines;
    machines.start(folder, plain, 0, 2);
    machines.start(folder, plain, 1, 3);
    all_say(machines.wait(20), 2, "machine 1 (m1) was started with --machines 3");
  }
  {
    Machines machines;
    machines.start(folder, plain, 0, 2, "3");
    REQUIRE(within(20, [&] { return !machines[0].out().empty(); }));
    const Result second = run(folder, with(plain, on_machine(0, 2, machines.port())));
    INFO(second.error);
    CHECK(second.code == 2);
    CHECK(count(second.error, "error:") == 1);
  }
  is_refused(folder, with(plain, {"--machine", "1"}), {"--machines", "is missing"});
  is_refused(folder, with(plain, {"--machines", "2", "--meet", "a:1"}), {"--machine", "0 to 1"});
  is_refused(folder, with(plain, {"--machines", "2", "--machine", "2", "--meet", "a:1"}),
             {"--machine", "0 to 1", "got 2"});
  is_refused(folder, with(plain, {"--machines", "2", "--machine", "0"}), {"--meet", "HOST:PORT"});
  is_refused(folder, with(plain, {"--machines", "2", "--machine", "0", "--meet", "alpha"}),
             {"--meet", "HOST:PORT", "'alpha'"});
  is_refused(folder, with(plain, {"--machines", "2", "--machine", "0", "--meet", "alpha:70000"}),
             {"--meet", "HOST:PORT"});
}

TEST_CASE("what ends on one machine ends on all, and is named") {
  const RunFolder folder;
  const Words endless = train(mixed, {"train.steps=1000000"});
  Machines machines(folder, {endless, endless});
  REQUIRE(trains(folder));
  SECTION("a rank") {
    kill(machines[1].ranks().at(1), SIGKILL);
    all_say(machines.wait(20), 1, "rank 3 was killed by signal 9 (Killed) at step ");
  }
  SECTION("a launcher, and with it its ranks") {
    machines[1].signal(SIGKILL);
    const std::vector<Result> results = machines.wait(20);
    INFO(results[0].error);
    CHECK(results[0].code == 1);
    CHECK(count(results[0].error, "error: machine 1 (m1) is lost: its launcher has ended") == 1);
  }
  SECTION("the launcher of machine 0") {
    machines[0].signal(SIGKILL);
    const std::vector<Result> results = machines.wait(20);
    INFO(results[1].error);
    CHECK(results[1].code == 1);
    CHECK(count(results[1].error, "error: machine 0 (m0) is lost: its launcher has ended") == 1);
  }
  SECTION("a request to stop, after which all save the same step") {
    machines[1].signal_group(SIGINT);
    for (const Result& result : machines.wait(20)) {
      INFO(result.error);
      CHECK(result.code == 130);
      CHECK(count(result.error, "error:") == 0);
    }
    const Words saved = checkpoints(folder / "checkpoints");
    REQUIRE_FALSE(saved.empty());
    CHECK(step_after(saved.back(), "step-") == steps_in(folder / "metrics.jsonl").back());
  }
}

TEST_CASE("what is not a launcher and connects all the same disturbs nobody") {
  const RunFolder folder;
  const Kind brief = steps(mixed, 12);
  Machines machines;
  machines.start(folder, train(brief, {}), 0, 2);
  REQUIRE(within(20, [&] { return !machines[0].out().empty(); }));
  usleep(200'000);  // it listens
  const auto stranger = [&](const std::string& says) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(machines.port()));
    REQUIRE(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    CHECK(send(socket, says.data(), says.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(says.size()));
    return socket;
  };
  const int silent = stranger("");
  const int web = stranger("GET / HTTP/1.1\r\n\r\n");
  const int short_one = stranger(std::string("\x03\0\0\0\0\1\2", 7));
  machines.start(folder, train(brief, {}), 1, 2);
  for (const Result& result : machines.wait()) {
    INFO(result.error);
    CHECK(result.code == 0);
    CHECK(count(result.error, "error:") == 0);
  }
  CHECK(curve(folder) == undisturbed(brief).curve);
  for (const int socket : {silent, web, short_one}) {
    close(socket);
  }
}

TEST_CASE("ranks that die on two machines start again, with the bits of an undisturbed run") {
  const auto [kind, blows] =
      GENERATE(table<Kind, int>({{steps(mixed, 60), 3}, {steps(captured_pipeline, 60), 1}}));
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  Machines machines(folder, {healing(kind), healing(kind)});
  REQUIRE(trains(folder));
  for (int blow = 1; blow <= blows; ++blow) {
    const std::size_t done = steps_in(folder / "metrics.jsonl").size();
    REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() > done + 5; }));
    const auto machine = static_cast<std::size_t>(blow % 2);
    const std::vector<pid_t> ranks = machines[machine].ranks();
    REQUIRE(ranks.size() == kind.ranks / 2);
    kill(ranks.back(), blow == 3 ? SIGSTOP : SIGKILL);
    REQUIRE(within(20, [&] {
      return count(machines[0].error(), "the run heals (") == blow &&
             count(machines[1].error(), "the run heals (") == blow;
    }));
  }
  for (const Result& result : machines.wait()) {
    INFO(result.out << result.error);
    CHECK(result.code == 0);
    CHECK(count(result.error, "error:") == 0);
    CHECK(count(result.error, ", which is in memory") == blows);
  }
  CHECK(ending_of(folder) == expected);
  CHECK(within(5, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

namespace {

/// So many machines with a rank each.
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

}  // namespace

TEST_CASE("a machine that is lost is replaced, and the run has the bits of an undisturbed one") {
  // Without checkpoints before the end nothing can be read from one; with them, a machine that
  // comes later finds others than those that are there have found.
  const auto [kind, every, machines, lost] =
      GENERATE(table<Kind, const char*, std::size_t, std::vector<std::size_t>>(
          {{steps(mixed, 80), "checkpoint.every=0", 2, {1, 0}},
           {of_machines(3), "checkpoint.every=7", 3, {2, 0, 1}}}));
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const Words command = healing(kind, {every, "train.heal_wait=20"});
  Machines all(folder, std::vector<Words>(machines, command));
  REQUIRE(trains(folder));
  for (const std::size_t number : lost) {
    const std::vector<std::int64_t> done = steps_in(folder / "metrics.jsonl");
    REQUIRE(trains(folder, static_cast<std::size_t>(done.back()) + 5));
    all.lose(number);
    const std::size_t other = (number + 1) % machines;
    REQUIRE(within(10, [&] { return count(all[other].error(), " is lost") > 0; }));
    all.replace(folder, command, number);
    REQUIRE(within(20, [&] { return count(all[number].error(), "takes the place of one") == 1; }));
    CHECK(count(all[number].error(), ", which is in memory") == 1);
  }
  all_end_as(folder, all, expected);
  CHECK(within(5, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

TEST_CASE("a launcher that was silent takes its place again, with what it has") {
  const Kind kind = steps(captured_pipeline, 60);
  const Ending& expected = undisturbed(kind);
  const RunFolder folder;
  Machines machines(folder, {healing(kind), healing(kind)});
  REQUIRE(trains(folder, 10));
  machines[1].signal(SIGSTOP);  // its rank goes on
  REQUIRE(within(10, [&] { return count(machines[0].error(), "machine 1 of 2 is lost") == 1; }));
  machines[1].signal(SIGCONT);
  REQUIRE(heal(machines, {0, 1}, 1));
  all_end_as(folder, machines, expected);
}

TEST_CASE("two machines that have each other's states are replaced, and a checkpoint is loaded") {
  const Kind kind = of_machines(3);
  const Ending& expected = undisturbed(kind);
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=20"});
  Machines machines(folder, std::vector<Words>(3, command));
  REQUIRE(trains(folder, 10));
  machines.lose(1);
  machines.lose(2);
  // One that does not fit is refused, and the run waits on.
  REQUIRE(
      within(10, [&] { return count(machines[0].error(), "machines 1, 2 of 3 are lost") == 1; }));
  const Result other =
      run(folder, with(command, with({"train.heal_limit=7"}, on_machine(1, 3, machines.port()))));
  INFO(other.error);
  CHECK(other.code == 2);
  CHECK(count(other.error, "error: launch: machine 1 (") == 1);
  CHECK(count(other.error, "has another config than machine 0") == 1);
  machines.replace(folder, command, 1);
  machines.replace(folder, command, 2);
  REQUIRE(heal(machines, {0, 1, 2}, 1));
  CHECK(count(machines[0].error(), "start again from checkpoints/step-") == 1);
  all_end_as(folder, machines, expected);
}

TEST_CASE("nobody comes in the place of a lost machine, or no place is kept") {
  const RunFolder folder;
  const Words endless = healing(mixed, {"train.steps=1000000", "train.heal_wait=1"});
  SECTION("of machine 1") {
    Machines machines(folder, {endless, endless});
    REQUIRE(trains(folder));
    machines.lose(1);
    const Result result = machines[0].wait(20);
    INFO(result.error);
    CHECK(result.code == 1);
    CHECK(result.left_running == 0);
    CHECK(count(result.error, "nobody has taken the place of machine 1 of 2") == 1);
    CHECK(count(result.error, "error: machine 1 (m1) is lost: its launcher has ended") == 1);
  }
  SECTION("of machine 0") {
    Machines machines(folder, {endless, endless});
    REQUIRE(trains(folder));
    machines.lose(0);
    const Result result = machines[1].wait(20);
    INFO(result.error);
    CHECK(result.code == 1);
    CHECK(result.left_running == 0);
    CHECK(count(result.error, "error: launch: machine 0 cannot be reached at localhost:") == 1);
  }
  SECTION("as the user does not want to wait") {
    const Words patient = with(endless, {"train.heal_wait=100"});
    Machines machines(folder, {patient, patient, patient, patient});
    REQUIRE(trains(folder));
    machines.lose(1);
    REQUIRE(within(10, [&] { return count(machines[0].error(), "is lost; the run waits") == 1; }));
    machines[3].signal(SIGINT);
    for (const std::size_t m : {0, 2, 3}) {
      const Result result = machines[m].wait(20);
      INFO(result.error);
      CHECK(result.code == 1);
      CHECK(result.left_running == 0);
    }
  }
}

namespace {

struct Tally {
  int ranks = 0;
  int machines = 0;
  int silent = 0;
  std::int64_t lost = 0;  // steps, the most of one heal
  double seconds = 0;     // until ranks start again: from a blow, or from the new machine's start
};

double seconds_until(double limit, const std::function<bool()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(within(limit, what));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Hurts random machines at random moments, `blows` times, and compares the run's end with the
/// undisturbed run. Its steps must be enough.
Tally hurt(const Kind& kind, std::size_t machines, int blows, unsigned seed) {
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=30"});
  std::mt19937 random(seed);
  Tally tally;
  Machines all(folder, std::vector<Words>(machines, command));
  REQUIRE(trains(folder));
  for (int blow = 0; blow < blows; ++blow) {
    const std::int64_t until =
        steps_in(folder / "metrics.jsonl").back() + 1 + static_cast<std::int64_t>(random() % 6);
    const bool goes_on =
        within(20, [&] { return steps_in(folder / "metrics.jsonl").back() >= until; });
    for (std::size_t m = 0; !goes_on && m < machines; ++m) {
      UNSCOPED_INFO("machine " << m << ": " << all[m].error());
    }
    REQUIRE(goes_on);
    const std::size_t hurt = random() % machines;
    Program& machine = all[hurt];
    const std::vector<pid_t> ranks = machine.ranks();
    if (ranks.size() != kind.ranks / machines) {
      continue;  // between two starts
    }
    const unsigned dice = random() % 10;
    const std::size_t witness = (hurt + 1) % machines;
    const int healed = count(all[witness].error(), "the run heals (");
    const auto heals = [&] { return count(all[witness].error(), "the run heals (") > healed; };
    const std::int64_t done = steps_in(folder / "metrics.jsonl").back();
    double seconds = 0;
    if (dice < 4) {
      ++tally.ranks;
      kill(ranks[random() % ranks.size()], dice == 0 ? SIGSTOP : SIGKILL);
      seconds = seconds_until(20, heals);
    } else if (dice < 9 || hurt == 0) {
      ++tally.machines;
      all.lose(hurt);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
      all.replace(folder, command, hurt);
      seconds = seconds_until(30, heals);
    } else {
      ++tally.silent;
      const int waits = count(all[0].error(), " is lost; the run waits");
      machine.signal(SIGSTOP);
      REQUIRE(within(15, [&] { return count(all[0].error(), " is lost; the run waits") > waits; }));
      machine.signal(SIGCONT);
      seconds = seconds_until(20, heals);
    }
    INFO(kind.name << ", seed " << seed << ", blow " << blow << ": " << all[witness].error());
    const std::string error = all[witness].error();
    const std::int64_t from =
        step_after(error.substr(error.rfind("the run heals (")), "start again after step ");
    CHECK(from >= 0);
    CHECK(done - from <= 2);
    tally.lost = std::max(tally.lost, done - from);
    tally.seconds = std::max(tally.seconds, seconds);
  }
  INFO(kind.name << ", seed " << seed);
  all_end_as(folder, all, expected);
  CHECK(tally.seconds < 10);
  CHECK(within(5, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
  return tally;
}

}  // namespace

/// TESSERA_KILLS: how many; TESSERA_WRITE_HEALING_TABLE: the file that gets the table.
TEST_CASE("a hundred blows to machines", "[.long]") {
  const char* const wanted = std::getenv("TESSERA_KILLS");
  const int blows = wanted != nullptr ? std::atoi(wanted) : 100;
  const std::vector<std::pair<Kind, std::size_t>> kinds = {
      {mixed, 2}, {hybrid, 4}, {captured, 2}, {captured_pipeline, 2}, {of_machines(3), 3}};
  std::string table =
      "| layout | machines | ranks killed or stopped | machines lost | machines silent | repeated "
      "steps, most | seconds to a new start, most |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const auto& [kind, machines] : kinds) {
    const int each = blows / static_cast<int>(kinds.size());
    const Tally tally = hurt(steps(kind, 500 + 60 * each), machines, each, 7);
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f", tally.seconds);
    table += "| " + kind.name + " | " + std::to_string(machines) + " | " +
             std::to_string(tally.ranks) + " | " + std::to_string(tally.machines) + " | " +
             std::to_string(tally.silent) + " | " + std::to_string(tally.lost) + " | " + seconds +
             " |\n";
  }
  if (const char* const file = std::getenv("TESSERA_WRITE_HEALING_TABLE")) {
    std::ofstream(file) << table;
  }
}

TEST_CASE(
    "a machine that is lost ends a run that waits for none, and the same commands continue it") {
  const Kind brief = steps(mixed, 40);
  const RunFolder folder;
  {
    const Words command = healing(brief, {"train.heal_wait=0"});
    Machines machines(folder, {command, command});
    REQUIRE(trains(folder, 10));
    machines[1].signal(SIGSTOP);  // its ranks go on, and it is silent
    const Result first = machines[0].wait(20);
    INFO(first.error);
    CHECK(first.code == 1);
    CHECK(first.left_running == 0);
    CHECK(count(first.error, "error: machine 1 (m1) is lost: nothing was heard of") == 1);
    machines[1].signal(SIGCONT);
    CHECK(machines[1].wait(20).code == 1);
  }
  Machines machines(folder, {healing(brief), healing(brief)});
  for (const Result& result : machines.wait()) {
    INFO(result.error);
    CHECK(result.code == 0);
  }
  CHECK(ending_of(folder) == undisturbed(brief));
}
