// The ledger: each second of a rank is booked once.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.runs;

using namespace tessera;
using namespace tessera::runs;

namespace {

/// A clock that stands still until it is set.
struct Clock {
  double now = 0;
  std::function<double()> function() {
    return [this] { return now; };
  }
};

TimeBook book_with(double compute, double data = 0, double start = 0) {
  TimeBook book;
  book[TimeUse::compute] = compute;
  book[TimeUse::data] = data;
  book[TimeUse::start] = start;
  return book;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("at each time a rank's time is booked on one use, so all uses are all of the time") {
  Clock clock{.now = 100};
  TimeLedger ledger(90, TimeUse::start, {}, clock.function());
  CHECK(ledger.book()[TimeUse::start] == 10);
  clock.now = 103;
  CHECK(ledger.enter(TimeUse::compute) == TimeUse::start);
  clock.now = 104;
  {
    const TimeScope reads(&ledger, TimeUse::data);
    clock.now = 106;
    {
      const TimeScope captures(&ledger, TimeUse::capture);
      clock.now = 110;
    }
    clock.now = 111;
  }
  const TimeScope nowhere(nullptr, TimeUse::save);
  clock.now = 111.5;
  const TimeBook book = ledger.book();
  CHECK(book[TimeUse::start] == 13);
  CHECK(book[TimeUse::compute] == 1.5);
  CHECK(book[TimeUse::data] == 3);
  CHECK(book[TimeUse::capture] == 4);
  CHECK(book.total() == 21.5);
  CHECK(book.goodput() == 1.5 / 21.5);
  CHECK(TimeBook().goodput() == 0);
}

TEST_CASE("what is booked on another use afterwards is no more than there was") {
  Clock clock;
  TimeLedger ledger(0, TimeUse::compute, book_with(5), clock.function());
  clock.now = 2;
  const TimeBook before = ledger.book();
  clock.now = 6;
  ledger.move(TimeUse::compute, TimeUse::communication, 1.5, before);
  CHECK(ledger.book()[TimeUse::compute] == 9.5);
  ledger.move(TimeUse::compute, TimeUse::communication, 100, before);
  CHECK(ledger.book()[TimeUse::compute] == 7);
  CHECK(ledger.book()[TimeUse::communication] == 4);
  ledger.move(TimeUse::communication, TimeUse::slow_ranks, -1, before);
  CHECK(ledger.book()[TimeUse::slow_ranks] == 0);
  CHECK(ledger.book().total() == 11);
  ledger.move_all(TimeUse::repeated, before);
  CHECK(ledger.book()[TimeUse::repeated] == 4);
  CHECK(ledger.book()[TimeUse::compute] == 7);
  CHECK(ledger.book().total() == 11);
}

TEST_CASE("what a rank has booked outlives it, and is whole wherever it was killed") {
  const TimeBoard board(2);
  CHECK(board.get(1).time == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    TimeBoard mine = board;
    for (std::int64_t i = 1;; ++i) {
      const auto value = static_cast<double>(i);
      mine.put(1, {.time = value, .step = i, .book = book_with(value, value, value)});
    }
  }
  while (board.get(1).step < 1000) {
    std::this_thread::yield();
  }
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  const TimeBoard::Entry left = board.get(1);
  CHECK(left.step >= 1000);
  const auto value = static_cast<double>(left.step);
  CHECK(left.time == value);
  CHECK(left.book.seconds == book_with(value, value, value).seconds);
  CHECK(board.get(0).time == 0);
}

TEST_CASE(
    "the ledger is shown for all ranks together and for each, or for two where they are many") {
  std::vector<TimeBook> ranks = {book_with(60, 0, 40)};
  std::vector<std::string> lines = ledger_lines(ranks);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "time of the rank: 1:40, of which start 40.0%, compute 60.0%");
  ranks.push_back(book_with(50, 10, 40));
  lines = ledger_lines(ranks);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "time of 2 ranks: 1:40, of which start 40.0%, data 5.0%, compute 55.0%");
  CHECK(has(lines[1], "start"));
  CHECK_FALSE(has(lines[1], "save"));
  CHECK(has(lines[3], "rank 1"));
  CHECK(has(lines[3], "50.00"));
  CHECK(has(lines[3], "100.00"));
  for (int i = 0; i < 20; ++i) {
    ranks.push_back(book_with(i == 12 ? 1 : 70 + i));
  }
  lines = ledger_lines(ranks);
  REQUIRE(lines.size() == 4);
  CHECK(has(lines[2], "rank 14"));
  CHECK(has(lines[3], "rank 21"));
}

TEST_CASE("the metrics file keeps the ledger of its steps") {
  const testing::Folder folder;
  const auto file = folder.path() / "metrics.jsonl";
  StepMetrics step;
  step.step = 1;
  StepMetrics without;
  without.step = 2;
  step.ledger = book_with(0.1 + 0.2, 1e-9);
  step.ledger[TimeUse::slow_ranks] = 4;
  step.ledger_ranks = {book_with(1), book_with(2, 3)};
  {
    MetricsWriter writer(file, 0);
    writer.write(step);
    writer.write(without);
  }
  const std::vector<StepMetrics> read = read_metrics(file);
  REQUIRE(read.size() == 2);
  CHECK(read[0].ledger.seconds == step.ledger.seconds);
  CHECK(read[1].ledger.total() == 0);
  const nlohmann::json json = nlohmann::json::parse(to_json(step));
  CHECK(json.at("ledger").at("slow_ranks") == 4);
  CHECK_FALSE(json.at("ledger").contains("save"));
  CHECK(json.at("ledger_ranks").at(1) == nlohmann::json({{"data", 3}, {"compute", 2}}));
  CHECK_FALSE(nlohmann::json::parse(to_json(without)).contains("ledger"));
}
