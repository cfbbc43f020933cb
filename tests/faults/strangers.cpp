// Runs on several machines whose ports strangers reach.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "free_port.hpp"
#include "machines.hpp"
#include "resident.hpp"
#include "skip.hpp"

using namespace faults;
using tessera::testing::resident_kib;

namespace {

namespace fs = std::filesystem;

/// A connection to a port of this machine; -1: there is none.
int connection(int port, in_addr_t at = htonl(INADDR_LOOPBACK)) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = at;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(socket);
    return -1;
  }
  return socket;
}

/// A stranger that has said something.
int stranger(int port, const std::string& says) {
  const int socket = connection(port);
  REQUIRE(socket >= 0);
  CHECK(send(socket, says.data(), says.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(says.size()));
  return socket;
}

/// What it is told until the connection ends, for at most five seconds.
std::string answer(int socket) {
  std::string all;
  std::array<char, 4096> room{};
  pollfd waiting{socket, POLLIN, 0};
  for (ssize_t got = 1; got > 0 && poll(&waiting, 1, 5000) > 0;) {
    got = recv(socket, room.data(), room.size(), 0);
    all.append(room.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  close(socket);
  return all;
}

/// Where these processes listen for TCP: the addresses, as /proc writes them, by port.
std::map<int, std::set<std::string>> listening(const std::vector<pid_t>& processes) {
  std::map<int, std::set<std::string>> found;
  for (const pid_t process : processes) {
    const std::string folder = "/proc/" + std::to_string(process);
    std::set<std::string> own;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder + "/fd", ignored)) {
      const std::string link = fs::read_symlink(entry.path(), ignored).string();
      if (link.starts_with("socket:[")) {
        own.insert(link.substr(8, link.size() - 9));
      }
    }
    for (const char* table : {"/net/tcp", "/net/tcp6"}) {
      const Words lines = lines_of(read_file(folder + table));
      for (std::size_t i = 1; i < lines.size(); ++i) {
        std::istringstream words(lines[i]);
        Words columns(10);  // the number, this end, the other one, the state, ..., the inode
        for (std::string& column : columns) {
          words >> column;
        }
        if (columns[3] == "0A" && own.contains(columns[9])) {
          const std::size_t colon = columns[1].find(':');
          found[std::stoi(columns[1].substr(colon + 1), nullptr, 16)].insert(
              columns[1].substr(0, colon));
        }
      }
    }
  }
  return found;
}

std::map<int, std::set<std::string>> listening(Machines& machines, std::size_t count) {
  std::vector<pid_t> processes;
  for (std::size_t m = 0; m < count; ++m) {
    const std::vector<pid_t> living = machines[m].living();
    processes.insert(processes.end(), living.begin(), living.end());
  }
  return listening(processes);
}

/// Connects to ports, as a stranger that is silent, says something, or comes again and again.
class Attack {
 public:
  explicit Attack(std::vector<int> ports, int each_milliseconds)
      : ports_(std::move(ports)), pause_(each_milliseconds), thread_([this] { work(); }) {}
  Attack(const Attack&) = delete;
  Attack& operator=(const Attack&) = delete;
  ~Attack() {
    ended_ = true;
    thread_.join();
    for (const int socket : open_) {
      close(socket);
    }
  }
  int made() const { return made_; }

 private:
  void work() {
    const std::vector<std::string> texts = {"", "GET / HTTP/1.1\r\n\r\n", "tessera+",
                                            "tessera+" + std::string(70, 'x'),
                                            std::string("\xff\xff\xff\xff\x00", 5)};
    while (!ended_) {
      for (const int port : ports_) {
        if (const int socket = connection(port); socket >= 0) {
          const std::string& text = texts[static_cast<std::size_t>(made_) % texts.size()];
          send(socket, text.data(), text.size(), MSG_NOSIGNAL);
          open_.push_back(socket);
          ++made_;
        }
      }
      if (open_.size() > 800) {
        for (const int socket : open_) {
          close(socket);
        }
        open_.clear();
      }
      std::this_thread::sleep_for(pause_);
    }
  }

  std::vector<int> ports_;
  std::chrono::milliseconds pause_;
  std::vector<int> open_;
  std::atomic<int> made_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

constexpr const char* loopback4 = "0100007F";
constexpr const char* loopback6 = "00000000000000000000000001000000";

/// A key that no run has.
std::string other_key() { return std::string(64, '7'); }

Words words_of(const Kind& kind, std::size_t number, int port) {
  return with(train(kind, {}), on_machine(number, 2, port));
}

}  // namespace

TEST_CASE("ports of a run are at the addresses of its meeting, and say refused to strangers") {
  std::vector<std::string> transports = {"tcp"};
  if (TESSERA_HAS_UCX) {
    transports.emplace_back("ucx");
  }
  const std::string transport = GENERATE_REF(from_range(transports));
  CAPTURE(transport);
  const Kind brief = steps(mixed, 400);
  const RunFolder folder;
  const Words command = healing(brief, {"train.heal_wait=20", "mesh.transport=" + transport});
  Machines machines(folder, {command, command});
  REQUIRE(trains(folder, 5));
  const auto ports = listening(machines, 2);
  // The meeting, a second home on each machine, and a port of each rank. UCX has its own, which say
  // nothing.
  constexpr std::ptrdiff_t own_ports = 1 + 2 + 4;
  CHECK((transport == "ucx" ? std::ssize(ports) > own_ports : std::ssize(ports) == own_ports));
  std::vector<int> strangers;
  for (const auto& [port, addresses] : ports) {
    INFO(port);
    for (const std::string& address : addresses) {
      CHECK((address == loopback4 || address == loopback6));
    }
    CHECK(addresses.contains(loopback4));
    for (const std::string& says :
         {std::string("GET / HTTP/1.1\r\n\r\n"),
          std::string("\x12\0\0\0\0\x12\0\0\0tessera launcher 1", 27), std::string()}) {
      strangers.push_back(stranger(port, says));
    }
  }
  std::ptrdiff_t refused = 0;
  for (const int socket : strangers) {
    const std::string said = answer(socket);
    CHECK((said == "refused" || (transport == "ucx" && said.empty())));
    refused += said == "refused" ? 1 : 0;
  }
  CHECK(refused == 3 * own_ports);
  all_end_as(folder, machines, undisturbed(brief, {}));
}

TEST_CASE("strangers at every port neither slow a run nor fill its memory") {
  const RunFolder folder;
  const Words endless =
      healing(mixed, {"train.steps=1000000", "train.heal_wait=20", "mesh.transport=tcp"});
  Machines machines(folder, {endless, endless});
  REQUIRE(trains(folder, 20));
  const auto now = [&] { return static_cast<double>(steps_in(folder / "metrics.jsonl").size()); };
  const auto rate = [&](double seconds) {
    const double before = now();
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return (now() - before) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<int> ports;
  for (const auto& [port, addresses] : listening(machines, 2)) {
    ports.push_back(port);
  }
  REQUIRE(ports.size() == 7);
  const double alone = rate(1);
  const std::size_t memory = resident_kib(std::to_string(machines[0].process()));
  double beside = 0;
  {
    const Attack attack(ports, 20);
    beside = rate(1);
    CHECK(attack.made() > 50);
    CHECK(resident_kib(std::to_string(machines[0].process())) < memory + 8192);
  }
  INFO(alone << " steps a second alone, " << beside << " beside strangers");
  CHECK(beside >= alone / 4);  // it was a hundredth of it; other work of the machine disturbs both
  machines[1].signal_group(SIGINT);
  for (const Result& result : machines.wait()) {
    INFO(result.error);
    CHECK(result.code == 130);
  }
  for (const std::size_t m : {0, 1}) {
    CHECK(count(machines[m].error(), "the run heals (") == 0);
    CHECK(count(machines[m].error(), "refused, without a proof of the run's key") > 0);
  }
}

TEST_CASE("strangers do not keep machines from meeting, and learn nothing of the run") {
  const Kind brief = steps(mixed, 12);
  const RunFolder folder;
  Machines machines;
  machines.start(folder, train(brief, {}), 0, 2);
  REQUIRE(within(20, [&] { return !listening(machines, 1).empty(); }));
  const Attack attack({machines.port()}, 1);
  REQUIRE(within(10, [&] { return attack.made() > 300; }));
  // One with another key, and otherwise the same command.
  const Result stranger = run(
      folder, words_of(steps(mixed, 13), 1, machines.port()),
      {.environment = {
           {"TESSERA_KEY", other_key()}, {"TESSERA_MACHINE", "m1"}, {"TESSERA_JOB", "another"}}});
  INFO(stranger.error);
  CHECK(stranger.code == 2);
  CHECK(count(stranger.error, "have different keys (refused)") == 1);
  CHECK(count(stranger.error, " 12") == 0);  // the steps; a port may have the digits
  CHECK(count(stranger.error, "another config") == 0);
  machines.start(folder, train(brief, {}), 1, 2);
  all_end_as(folder, machines, undisturbed(brief));
}

TEST_CASE("who has another key does not take the place of a lost machine") {
  const Kind kind = steps(mixed, 60);
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=20"});
  Machines machines(folder, {command, command});
  REQUIRE(trains(folder, 10));
  machines.lose(1);
  REQUIRE(within(10, [&] { return count(machines[0].error(), "is lost; the run waits") == 1; }));
  const StartOptions other{
      .environment = {{"TESSERA_KEY", other_key()}, {"TESSERA_MACHINE", "m1"}}};
  for (const Words& place :
       {on_machine(1, 2, machines.port()), Words{"--machines", "2", "--spare", "--meet",
                                                 "localhost:" + std::to_string(machines.port())}}) {
    const Result stranger = run(folder, with(command, place), other);
    INFO(stranger.error);
    CHECK(stranger.code == 2);
    CHECK(count(stranger.error, "have different keys (refused)") == 1);
  }
  CHECK(count(machines[0].error(), "the run heals (") == 0);
  machines.replace(folder, command, 1);
  all_end_as(folder, machines, undisturbed(kind));
}

TEST_CASE("a byte that is changed between two launchers ends the link, and names it") {
  const Kind kind = steps(mixed, 1000000);
  const RunFolder folder;
  Machines machines;
  machines.start(folder, train(kind, {}), 0, 2);
  REQUIRE(within(20, [&] { return !listening(machines, 1).empty(); }));
  // Machine 1 meets at the port of somebody who passes on what he hears.
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  REQUIRE(listen(listener, 4) == 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  std::atomic<bool> changes{false};
  std::atomic<bool> ended{false};
  std::thread between([&] {
    std::array<int, 2> ends{};
    pollfd coming{listener, POLLIN, 0};
    if (poll(&coming, 1, 20'000) <= 0) {
      return;
    }
    ends[0] = accept(listener, nullptr, nullptr);
    ends[1] = connection(machines.port());
    std::array<char, 65536> room{};
    while (!ended) {
      std::array<pollfd, 2> waiting = {pollfd{ends[0], POLLIN, 0}, pollfd{ends[1], POLLIN, 0}};
      poll(waiting.data(), waiting.size(), 50);
      for (const std::size_t i : {0, 1}) {
        if (waiting[i].revents == 0) {
          continue;
        }
        const ssize_t got = recv(ends[i], room.data(), room.size(), 0);
        if (got <= 0) {
          ended = true;
          break;
        }
        if (i == 0 && changes.exchange(false)) {
          room[static_cast<std::size_t>(got) - 1] ^= 1;
        }
        send(ends[1 - i], room.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
      }
    }
    close(ends[0]);
    close(ends[1]);
  });
  Program second(folder, words_of(kind, 1, ntohs(address.sin_port)),
                 {.environment = {{"TESSERA_MACHINE", "m1"}, {"TESSERA_TIMEOUT", "20"}}});
  const bool going = trains(folder, 5);
  changes = true;
  const Result first = machines[0].wait(30);
  const Result other = second.wait(30);
  ended = true;
  between.join();
  close(listener);
  INFO(first.error << other.error);
  CHECK(going);
  CHECK(first.code == 1);
  CHECK(count(first.error, "error: machine ") == 1);  // whichever has noticed it first
  CHECK(count(first.error,
              "the link with 127.0.0.1: a message was changed on the way: its "
              "checksum is wrong") == 1);
  CHECK(other.code == 1);
}

TEST_CASE("a key that a run was given is in a file or its memory, and nowhere else") {
  const Kind kind = steps(mixed, 100);
  const RunFolder folder;
  const std::string key(64, 'c');
  const std::string file = folder.write("run.key", key + "\n");
  REQUIRE(chmod(file.c_str(), 0600) == 0);
  const int port = tessera::testing::free_port();
  const Words command = healing(kind, {"train.heal_wait=20", "log.blackbox=box"});
  Program first(folder, with(command, on_machine(0, 2, port)),
                {.environment = {{"TESSERA_MACHINE", "m0"}, {"TESSERA_KEY", key}}});
  Program second(folder, with(command, on_machine(1, 2, port)),
                 {.environment = {{"TESSERA_MACHINE", "m1"}, {"TESSERA_KEY_FILE", file}}});
  REQUIRE(trains(folder, 10));
  std::vector<pid_t> processes = first.living();
  for (const pid_t process : second.living()) {
    processes.push_back(process);
  }
  CHECK(processes.size() == 6);
  for (const pid_t process : processes) {
    for (const char* what : {"/environ", "/cmdline"}) {
      CHECK(count(read_file("/proc/" + std::to_string(process) + what), key) == 0);
    }
  }
  kill(second.ranks().at(0), SIGKILL);  // a black box is written
  for (Program* const program : {&first, &second}) {
    const Result result = program->wait(40);
    INFO(result.error);
    CHECK(result.code == 0);
    CHECK(count(result.out + result.error, key) == 0);
  }
  for (const auto& [name, size] : folder.listing()) {
    INFO(name);
    CHECK((name == file || !fs::is_regular_file(name) || count(read_file(name), key) == 0));
  }
}

TEST_CASE("machines without a key are told what to do, unless all are this one") {
  const RunFolder folder;
  const Words plain = train(steps(mixed, 4), {});
  const Words place = {"--machines", "2", "--machine", "1", "--meet", "192.0.2.7:29500"};
  const auto refused = run(folder, with(plain, place));
  INFO(refused.error);
  CHECK(refused.code == 2);
  CHECK(count(refused.error, "this process has no key") == 1);
  CHECK(count(refused.error, "TESSERA_KEY_FILE") == 1);
  const auto wrong = run(folder, with(plain, on_machine(1, 2, 29500)),
                         {.environment = {{"TESSERA_KEY", "5ec4e7"}}});
  CHECK(wrong.code == 2);
  CHECK(count(wrong.error, "TESSERA_KEY: not a key (expected 64 hexadecimal digits") == 1);
  CHECK(count(wrong.error, "5ec4e7") == 0);
  is_refused(folder, with(plain, with({"mesh.interface=ib7"}, on_machine(0, 2, 29500))),
             {"mesh.interface", "no interface or address 'ib7'", "lo (127.0.0.1)"});
}

TEST_CASE("on a network machine 0 prints a key, and ports are at that network's addresses",
          "[.root]") {
  const Link link;
  if (!link.made()) {
    tessera::testing::skip("two networks cannot be made here (it takes root, and `ip`)");
    return;
  }
  const Kind brief = steps(mixed, 60);
  const RunFolder folder;
  const Words command = healing(brief, {"train.heal_wait=20"});
  const int port = tessera::testing::free_port();
  const auto machine = [&](std::size_t number, std::map<std::string, std::string> environment) {
    environment["TESSERA_MACHINE"] = "m" + std::to_string(number);
    environment["TESSERA_INTERFACE"] = "link" + std::to_string(number);
    Words words = with(command, on_machine(number, 2, port));
    words.back() = link.address(0) + ":" + std::to_string(port);
    return std::make_unique<Program>(
        folder, words, StartOptions{.environment = environment, .launcher = link.launcher(number)});
  };
  const auto first = machine(0, {});
  const std::string before = "each with its number: TESSERA_KEY=";
  REQUIRE(within(20, [&] { return count(first->error(), before) == 1; }));
  CHECK(machine(1, {})->wait(20).code == 2);
  const std::string line = first->error();
  const std::string key = line.substr(line.find(before) + before.size(), 64);
  CHECK(count(line, key + " ") == 1);
  CHECK(count(line, " --machine 1 ") == 1);
  const auto second = machine(1, {{"TESSERA_KEY", key}});
  REQUIRE(trains(folder, 5));
  for (const auto& [program, address] :
       {std::pair{first.get(), "01004D0A"}, std::pair{second.get(), "02004D0A"}}) {
    const auto ports = listening(program->living());
    CHECK(ports.size() >= 3);
    for (const auto& [number, addresses] : ports) {
      CHECK(addresses == std::set<std::string>{address});
    }
  }
  for (Program* const program : {first.get(), second.get()}) {
    const Result result = program->wait(40);
    INFO(result.error);
    CHECK(result.code == 0);
  }
  CHECK(ending_of(folder) == undisturbed(brief));
}
