// Runs that heal: whatever happens to their ranks, they end as if nothing had happened.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "layouts.hpp"
#include "mount.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;

/// What happens to a rank.
enum class Blow : std::uint8_t { kill, stop };

struct Tally {
  int blows = 0;
  int heals = 0;
  std::int64_t lost = 0;  // steps, the most of one heal
  double seconds = 0;     // from a blow to the ranks' new start, the most
};

/// Looks at what a run says of its heals: from where, and how many steps were lost.
void look_at_heals(const std::string& error, Tally& tally) {
  std::int64_t at = -1;
  for (const std::string& line : lines_of(error)) {
    if (const std::int64_t step = step_after(line, " at step "); step >= 0) {
      // A stage's action is of a step that is counted from 0, as in its program.
      at = line.find(" of stage ") != std::string::npos ? step + 1 : step;
    }
    if (line.find("the run heals (") != std::string::npos) {
      const std::int64_t from = step_after(line, "start again after step ");
      if (at > 0 && from >= 0) {
        tally.lost = std::max(tally.lost, at - from);
      }
      at = -1;
    }
  }
}

/// Hurts random ranks at random moments until the run ends, or `blows` times, and compares its end
/// with the undisturbed run.
Tally heals(const Kind& kind, int blows, unsigned seed, double longest = 0.15) {
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const fs::path temporary = folder / "temporary";
  fs::create_directory(temporary);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> pause(0, longest);
  Tally tally;
  Program program(folder, healing(kind), {.environment = {{"TMPDIR", temporary.string()}}});
  REQUIRE(within(20, [&] { return !steps_in(folder / "metrics.jsonl").empty(); }));
  while (tally.blows < blows && !program.living().empty()) {
    // Some blows come while ranks start, the others some steps later: as many of them then, however
    // fast a step is.
    if (random() % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause(random)));
    } else {
      const std::size_t until = steps_in(folder / "metrics.jsonl").size() + 1 + random() % 6;
      static_cast<void>(within(20, [&] {
        return steps_in(folder / "metrics.jsonl").size() >= until || program.living().empty();
      }));
    }
    const std::vector<pid_t> ranks = program.ranks();
    if (ranks.size() != kind.ranks) {
      continue;  // at the end, or between two starts
    }
    const Blow blow = random() % 4 == 0 ? Blow::stop : Blow::kill;
    const int before = count(program.error(), "the run heals (");
    kill(ranks[random() % ranks.size()], blow == Blow::stop ? SIGSTOP : SIGKILL);
    ++tally.blows;
    const auto begin = std::chrono::steady_clock::now();
    const bool healed = within(20, [&] {
      return count(program.error(), "the run heals (") > before || program.living().empty();
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    INFO(kind.name << ", blow " << tally.blows << ": " << program.error());
    REQUIRE(healed);
    tally.seconds = std::max(tally.seconds, took.count());
  }
  const Result result = program.wait(120);
  INFO(kind.name << ", seed " << seed << ": " << result.error);
  CHECK(result.code == 0);
  CHECK(result.left_running == 0);
  CHECK(count(result.error, "error:") == 0);
  tally.heals = count(result.error, "the run heals (");
  look_at_heals(result.error, tally);
  CHECK(tally.heals <= tally.blows);
  CHECK(tally.heals + 1 >= tally.blows);  // the last one may have come after the end
  // The step that was not complete, and the one before it where a rank has not yet kept its part.
  CHECK(tally.lost <= 2);
  CHECK(tally.seconds < 10);
  const Ending ending = ending_of(folder);
  CHECK(ending.curve == expected.curve);
  CHECK(ending == expected);
  CHECK(within(2, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
  CHECK(fs::is_empty(temporary));
  for (const std::string& name : checkpoints(folder / "checkpoints")) {
    CHECK(name.starts_with("step-"));  // nothing half-written stays
  }
  return tally;
}

/// A pipe with a name, and what has been written into it.
class Pipe {
 public:
  explicit Pipe(const std::string& path) {
    REQUIRE(::mkfifo(path.c_str(), 0666) == 0);
    end_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);  // it always has a reader
    REQUIRE(end_ >= 0);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() { ::close(end_); }
  const std::string& text() {
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(end_, buffer, sizeof(buffer))) > 0;) {
      text_.append(buffer, static_cast<std::size_t>(got));
    }
    return text_;
  }

 private:
  int end_ = -1;
  std::string text_;
};

/// What gets a request to stop, beside a rank that is killed.
enum class Asked : std::uint8_t { command, group, other_rank };

/// Asks a run to stop around the moment at which a rank dies. It ends as one that was asked to,
/// with its step saved, and continues with the same bits.
void stop_as_a_rank_dies(int times, unsigned seed, int signal) {
  const Ending& expected = undisturbed(sharded);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> pause(0, 0.06);
  int healed = 0;
  for (int i = 0; i < times; ++i) {
    const RunFolder folder;
    Result result;
    {
      Program program(folder, healing(sharded, {"train.steps=1000000"}));
      REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
      std::this_thread::sleep_for(std::chrono::duration<double>(pause(random)));
      const std::vector<pid_t> ranks = program.ranks();
      REQUIRE(ranks.size() == 2);
      const auto asked = static_cast<Asked>(random() % 3);
      const auto ask = [&] {
        if (asked == Asked::other_rank) {
          kill(ranks[1], signal);
        } else {
          asked == Asked::group ? program.signal_group(signal) : program.signal(signal);
        }
      };
      const bool first = random() % 2 == 0;
      first ? ask() : static_cast<void>(kill(ranks[0], SIGKILL));
      std::this_thread::sleep_for(
          std::chrono::duration<double>(random() % 3 == 0 ? 0 : pause(random) / 4));
      first ? static_cast<void>(kill(ranks[0], SIGKILL)) : ask();
      if (asked == Asked::other_rank && !first &&
          !within(5, [&] { return program.living().empty(); })) {
        program.signal(signal);  // that rank had ended with the other one
      }
      result = program.wait(20);
    }
    INFO("stop " << i << " of seed " << seed << ": " << result.out << result.error);
    REQUIRE(result.code == 130);
    CHECK(result.left_running == 0);
    CHECK(count(result.error, "error:") == 0);
    healed += count(result.error, "the run heals (");
    const Words saved = checkpoints(folder / "checkpoints");
    REQUIRE_FALSE(saved.empty());
    const std::int64_t done = steps_in(folder / "metrics.jsonl").back();
    CHECK(step_after(saved.back(), "step-") == done);
    if (done < sharded.steps) {
      REQUIRE(run(folder, train(sharded, {})).code == 0);
      CHECK(curve(folder) == expected.curve);
    }
  }
  CHECK(healed >= times / 4);
}

}  // namespace

TEST_CASE("a run whose ranks are killed and stopped ends as if nothing had happened") {
  const auto [kind, blows] = GENERATE(
      table<Kind, int>({{sharded, 12}, {captured, 8}, {mixed, 5}, {pipeline, 5}, {lone, 4}}));
  const Tally tally = heals(kind, blows, 11);
  CHECK(tally.heals >= blows - 1);
}

TEST_CASE("a fault of one rank at one step heals, and the same one again does not") {
  const RunFolder folder;
  const Words plugin = {"optimizer.name=Stumbling",
                        std::string("plugins.paths=[\"") + TESSERA_STUMBLING + "\"]"};
  const Words plain = with(train(sharded, {"checkpoint.every=0"}), plugin);
  REQUIRE(run(folder, plain).code == 0);
  const Words expected = curve(folder);
  {
    const RunFolder once;
    Program program(once, with(healing(sharded, {"checkpoint.every=0"}), plugin));
    REQUIRE(within(20, [&] { return steps_in(once / "metrics.jsonl").size() >= 20; }));
    once.write("stumble-1", "");
    const Result result = program.wait(30);
    INFO(result.error);
    CHECK(result.code == 0);
    CHECK(count(result.error, "Stumbling: a test asked for this error") == 1);
    CHECK(count(result.error, "the run heals (1): its ranks start again after step ") == 1);
    CHECK(curve(once) == expected);
  }
  const RunFolder again;
  Program program(
      again,
      with(healing(sharded, {"checkpoint.every=0", "optimizer.options={again=true}"}), plugin));
  REQUIRE(within(20, [&] { return steps_in(again / "metrics.jsonl").size() >= 20; }));
  again.write("stumble-0", "");
  const Result result = program.wait(30);
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(result.left_running == 0);
  CHECK(count(result.error, "the run heals (") == 1);
  CHECK(count(result.error, "as a fault came again within 10 steps") == 1);
  CHECK(count(result.error, "error: rank 0, step ") == 1);
}

TEST_CASE("a rank with wrong numbers is named, and the run goes back to right ones") {
  const Kind copies{
      "copies",
      4,
      {"mesh.axes=[copy]", "mesh.shape=[4]", R"(parallel=[{style=Replicate,axis=copy,on=["."]}])"},
      60};
  const Words plugin = {"optimizer.name=Stumbling", "optimizer.options={flip=true}",
                        std::string("plugins.paths=[\"") + TESSERA_STUMBLING + "\"]"};
  const RunFolder plain;
  REQUIRE(run(plain, with(train(copies, {}), plugin)).code == 0);
  const RunFolder folder;
  Program program(folder, with(healing(copies, {"train.checksums=1"}), plugin));
  REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= 10; }));
  folder.write("stumble-2", "");
  const Result result = program.wait(30);
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(count(result.error,
              "train.checksums: rank 2 holds other bits than ranks 0, 1 and 3 of '") == 1);
  CHECK(count(result.error, "the run heals (1)") == 1);
  CHECK(curve(folder) == curve(plain));
}

TEST_CASE("a run heals as often as it may") {
  const RunFolder folder;
  Program program(folder,
                  train(sharded, {"train.steps=1000000", "train.heal=true", "train.heal_limit=2"}));
  for (int i = 0; i < 3; ++i) {
    const int before = count(program.error(), "the run heals (");
    const std::size_t done = steps_in(folder / "metrics.jsonl").size();
    REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() > done + 2; }));
    const std::vector<pid_t> ranks = program.ranks();
    REQUIRE(ranks.size() == 2);
    kill(ranks[1], SIGKILL);
    REQUIRE(within(20, [&] {
      return count(program.error(), "the run heals (") > before || program.living().empty();
    }));
  }
  const Result result = program.wait(20);
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(count(result.error, "the run heals (") == 2);
  CHECK(count(result.error, "as they were 2 times within an hour (train.heal_limit)") == 1);
  CHECK(count(result.error, "error: rank 1 was killed by signal 9") == 1);
}

TEST_CASE("an interrupt of a run that has healed saves its step and ends it") {
  const RunFolder folder;
  Program program(folder, healing(sharded, {"train.steps=1000000"}));
  REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
  kill(program.ranks().at(0), SIGKILL);
  REQUIRE(within(20, [&] { return count(program.error(), "the run heals (") == 1; }));
  const std::size_t done = steps_in(folder / "metrics.jsonl").size();
  REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() > done + 2; }));
  program.signal(SIGINT);
  const Result result = program.wait(20);
  CHECK(result.code == 130);
  CHECK(result.left_running == 0);
  CHECK(count(result.error, "error:") == 0);
  const Words saved = checkpoints(folder / "checkpoints");
  REQUIRE_FALSE(saved.empty());
  CHECK(step_after(saved.back(), "step-") == steps_in(folder / "metrics.jsonl").back());
}

TEST_CASE("a request to stop at the moment a rank dies saves a step and ends the run") {
  stop_as_a_rank_dies(8, 3, SIGTERM);
}

TEST_CASE("a hundred requests to stop at the moment a rank dies", "[.long]") {
  stop_as_a_rank_dies(60, 5, SIGTERM);
  stop_as_a_rank_dies(60, 7, SIGINT);
}

TEST_CASE("a request to one rank of a run that heals stops the run") {
  for (const std::size_t rank : {0U, 1U}) {
    const RunFolder folder;
    Program program(folder, healing(sharded, {"train.steps=1000000"}));
    REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
    kill(program.ranks().at(rank), SIGTERM);
    const Result result = program.wait(20);
    INFO(result.error);
    CHECK(result.code == 130);
    CHECK(result.error.empty());
    CHECK(step_after(checkpoints(folder / "checkpoints").back(), "step-") ==
          steps_in(folder / "metrics.jsonl").back());
  }
}

TEST_CASE("lines for people and for pipes come once, whatever happened between them") {
  const RunFolder folder;
  Pipe metrics(folder / "pipe");
  Program program(folder, healing(sharded, {"log.every=1", "log.metrics=pipe"}));
  for (int i = 1; i <= 4; ++i) {
    REQUIRE(within(20, [&] { return count(metrics.text(), "grad_norm") > 20 * i; }));
    const std::vector<pid_t> ranks = program.ranks();
    REQUIRE(ranks.size() == 2);
    kill(ranks[static_cast<std::size_t>(i % 2)], SIGKILL);
    REQUIRE(within(20, [&] { return count(program.error(), "the run heals (") == i; }));
  }
  REQUIRE(within(20, [&] { return count(metrics.text(), "{\"step\":150,") == 1; }));
  const Result result = program.wait(30);
  INFO(result.out << result.error);
  REQUIRE(result.code == 0);
  for (std::int64_t step = 1; step <= sharded.steps; ++step) {
    const std::string number = std::to_string(step);
    INFO("step " << step);
    CHECK(count(result.out, std::string(4 - number.size(), ' ') + number + "/150 ") == 1);
    CHECK(count(metrics.text(), "{\"step\":" + number + ",") == 1);
  }
}

TEST_CASE("a disk that is full for a while does not end a run that heals", "[.root]") {
  const RunFolder folder;
  const Mount disk({.at = folder / "checkpoints", .size = "4m"});
  if (!disk.mounted()) {
    tessera::testing::skip("a small tmpfs cannot be mounted here (it takes root)");
    return;
  }
  const Ending& expected = undisturbed(sharded);
  const std::string filler = folder / "checkpoints/filler";
  std::ofstream(filler) << std::string(3900000, 'x');
  Program program(folder, healing(sharded));
  const bool failed = within(
      20, [&] { return program.error().find("No space left on device") != std::string::npos; });
  fs::remove(filler);
  const Result result = program.wait(30);
  INFO(result.out << result.error);
  REQUIRE(failed);
  CHECK(result.code == 0);
  CHECK(count(result.error, "error:") == 0);
  CHECK(curve(folder) == expected.curve);
  CHECK(checkpoints(folder / "checkpoints").back() == "step-00000150");
}

TEST_CASE("ranks that another program starts are refused, with what to do") {
  const RunFolder folder;
  const Result result =
      run(folder, healing(sharded), {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}}});
  INFO(result.error);
  CHECK(result.code == 2);
  CHECK(count(result.error, "train.heal: another program has started the ranks") == 1);
  CHECK(result.error.find("--max-restarts") != std::string::npos);
  is_refused(folder, train(sharded, {"train.heal_after=0"}), {"train.heal_after", "0.1"});
  is_refused(folder, train(sharded, {"train.heal_limit=0"}), {"train.heal_limit", "1"});
  is_refused(folder, train(sharded, {"train.heal=maybe"}), {"train.heal", "maybe"});
  is_refused(folder, healing(sharded, {"train.checksums=2", "train.heal_every=3"}),
             {"train.checksums", "let heal_every (3) be a multiple of checksums (2)"});
}

/// TESSERA_KILLS: how many; TESSERA_WRITE_HEALING_TABLE: the file that gets the table.
TEST_CASE("a thousand kills", "[.long]") {
  const char* const wanted = std::getenv("TESSERA_KILLS");
  const int all = wanted != nullptr ? std::atoi(wanted) : 1000;
  std::vector<Kind> kinds = {sharded, captured, mixed, hybrid, pipeline, captured_pipeline, lone};
  std::string table =
      "| layout | ranks | blows | heals | lost steps, most | seconds to a new start, most |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: |\n";
  int sum = 0;
  for (Kind& kind : kinds) {
    kind.name += " (long)";
    kind.steps = 600;
    Tally whole;
    const int share = all / static_cast<int>(kinds.size());
    for (unsigned seed = 1; whole.blows < share; ++seed) {
      const Tally one = heals(kind, std::min(50, share - whole.blows), seed);
      whole.blows += one.blows;
      whole.heals += one.heals;
      whole.lost = std::max(whole.lost, one.lost);
      whole.seconds = std::max(whole.seconds, one.seconds);
    }
    sum += whole.heals;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f", whole.seconds);
    table += "| " + kind.name.substr(0, kind.name.size() - 7) + " | " + std::to_string(kind.ranks) +
             " | " + std::to_string(whole.blows) + " | " + std::to_string(whole.heals) + " | " +
             std::to_string(whole.lost) + " | " + seconds + " |\n";
  }
  CHECK(sum > all * 9 / 10);
  if (const char* const file = std::getenv("TESSERA_WRITE_HEALING_TABLE")) {
    std::ofstream(file) << table;
  }
}
