// Launchers on several machines meet, and end together.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "machines.hpp"

using namespace faults;

namespace {

/// Nobody starts.
void all_refuse(const Words& first, const Words& second, const std::string& text) {
  INFO(text);
  const RunFolder folder;
  const auto before = folder.listing();
  Machines machines(folder, {first, second});
  all_say(machines.wait(), 2, text);
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
             "the transport 'shm' connects ranks of one machine, and these are on several");
}

TEST_CASE("machines that do not come, or come twice, are named") {
  const Words plain = train(mixed, {});
  const RunFolder folder;
  {
    Machines machines;
    machines.start(folder, plain, 0, 3, "1.5");
    machines.start(folder, plain, 2, 3);
    all_say(machines.wait(), 1, "machine 1 of 3 did not come to localhost:");
  }
  {
    Machines machines;
    machines.start(folder, plain, 1, 2, "1.5");
    all_say(machines.wait(), 1, "machine 0 cannot be reached at localhost:");
  }
  {
    Machines machines;
    for (const std::size_t number : {0, 1, 1}) {
      machines.start(folder, plain, number, 3);
    }
    all_say(machines.wait(), 2, "two launchers were started with --machine 1");
  }
  {
    Machines machines;
    machines.start(folder, plain, 0, 2);
    machines.start(folder, plain, 1, 3);
    all_say(machines.wait(), 2, "machine 1 (m1) was started with --machines 3");
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
    all_say(machines.wait(), 1, "rank 3 was killed by signal 9 (Killed) at step ");
  }
  SECTION("a launcher, and with it its ranks") {
    machines[1].signal(SIGKILL);
    const std::vector<Result> results = machines.wait();
    INFO(results[0].error);
    CHECK(results[0].code == 1);
    CHECK(count(results[0].error, "error: machine 1 (m1) is lost: its launcher has ended") == 1);
  }
  SECTION("the launcher of machine 0") {
    machines[0].signal(SIGKILL);
    const std::vector<Result> results = machines.wait();
    INFO(results[1].error);
    CHECK(results[1].code == 1);
    CHECK(count(results[1].error, "error: machine 0 (m0) is lost: its launcher has ended") == 1);
  }
  SECTION("a request to stop, after which all save the same step") {
    machines[1].signal_group(SIGINT);
    for (const Result& result : machines.wait()) {
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

TEST_CASE(
    "a machine that is lost ends a run that waits for none, and the same commands continue it") {
  const Kind brief = steps(mixed, 40);
  const RunFolder folder;
  {
    const Words command = healing(brief, {"train.heal_wait=0"});
    Machines machines(folder, {command, command});
    REQUIRE(trains(folder, 10));
    machines[1].signal(SIGSTOP);  // its ranks go on, and it is silent
    const Result first = machines[0].wait(40);
    INFO(first.error);
    CHECK(first.code == 1);
    CHECK(first.left_running == 0);
    CHECK(count(first.error, "error: machine 1 (m1) is lost: nothing was heard of") == 1);
    machines[1].signal(SIGCONT);
    CHECK(machines[1].wait(40).code == 1);
  }
  Machines machines(folder, {healing(brief), healing(brief)});
  for (const Result& result : machines.wait()) {
    INFO(result.error);
    CHECK(result.code == 0);
  }
  CHECK(ending_of(folder) == undisturbed(brief));
}
