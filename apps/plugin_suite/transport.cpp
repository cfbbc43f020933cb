module;
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.collective;

// Transports: ranks that are processes meet, messages arrive whole and in order, nothing waits, and
// a rank that dies or does not belong to the run is noticed.
namespace tessera::plugin_suite {
namespace {

using collective::MessageTransport;
using collective::RunKey;
using collective::World;
using Part = MessageTransport::Part;
using Bytes = std::vector<std::byte>;

constexpr double longest_rank = 25;  // seconds

/// What a rank does; returns why that is wrong, or nothing.
using RankBody = std::function<std::string(int rank)>;

/// How a rank has ended: what it says, "error: " and an error of the kind run, "refused: " and one
/// of the kind input, or "ended" where a signal or the limit has ended it.
using RankEnds = std::vector<std::string>;

std::string what_it_says(const RankBody& body, int rank) {
  try {
    return body(rank);
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::input ? "refused: " : "error: ") + std::string(error.what());
  } catch (const std::exception& error) {
    return std::string("error: ") + error.what();
  }
}

/// Runs ranks as processes, which meet at a free port of this machine with one key.
RankEnds run_ranks(int size, const RankBody& body, double limit = longest_rank) {
  struct RankProcess {
    pid_t process = -1;
    int pipe = -1;
  };
  std::vector<collective::Socket> at = collective::listen_at({"127.0.0.1"}, 0);
  const std::string meet = fmt::format("127.0.0.1:{}", at.front().own_end().port);
  at.clear();
  setenv("TESSERA_MEET", meet.c_str(), 1);
  setenv("TESSERA_JOB", fmt::format("plugin check {}", getpid()).c_str(), 1);
  collective::hold_run_key(RunKey::random());
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) {
      fail("no pipe can be made");
    }
    const pid_t process = fork();
    if (process == 0) {
      close(ends[0]);
      const std::string said = what_it_says(body, rank) + "\n";
      for (std::string_view left = said; !left.empty();) {
        const ssize_t written = write(ends[1], left.data(), left.size());
        if (written <= 0) {
          break;
        }
        left.remove_prefix(static_cast<std::size_t>(written));
      }
      _exit(0);
    }
    close(ends[1]);
    ranks.push_back({process, ends[0]});
  }
  RankEnds said;
  Stopwatch watch;
  for (const RankProcess& rank : ranks) {
    std::string text;
    std::array<char, 4096> room{};
    while (text.find('\n') == std::string::npos) {
      const double left = std::max(0.0, limit - watch.waited());
      pollfd waiting{rank.pipe, POLLIN, 0};
      if (poll(&waiting, 1, static_cast<int>(left * 1000)) <= 0) {
        break;
      }
      const ssize_t got = read(rank.pipe, room.data(), room.size());
      if (got <= 0) {
        break;
      }
      text.append(room.data(), static_cast<std::size_t>(got));
    }
    const std::size_t end = text.find('\n');
    said.push_back(end == std::string::npos ? "ended" : text.substr(0, end));
  }
  for (const RankProcess& rank : ranks) {
    kill(rank.process, SIGKILL);
    waitpid(rank.process, nullptr, 0);
    close(rank.pipe);
  }
  return said;
}

/// The first rank with a problem. A transport whose ranks another program must start is not tried.
std::string problem_of(const RankEnds& ends) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    constexpr std::string_view refused = "refused: ";
    if (ends[rank].starts_with(refused)) {
      throw SkippedCheck{ends[rank].substr(refused.size())};
    }
    if (!ends[rank].empty()) {
      return fmt::format("rank {}: {}", rank,
                         ends[rank] == "ended" ? "it did not end, or has crashed" : ends[rank]);
    }
  }
  return "";
}

std::unique_ptr<MessageTransport> transport_of(const std::string& name) {
  return plugin::host().find<MessageTransport>(name)();
}

std::string text_of_rank(int rank) { return fmt::format("rank {} of a check", rank); }

std::string ranks_meet(const std::string& name) {
  constexpr int size = 3;
  return problem_of(run_ranks(size, [&](int rank) -> std::string {
    const auto transport = transport_of(name);
    const std::vector<std::string> texts = transport->exchange(rank, size, text_of_rank(rank));
    for (int other = 0; other < size; ++other) {
      if (texts.size() != size || texts[static_cast<std::size_t>(other)] != text_of_rank(other)) {
        return fmt::format("exchange does not give the text of rank {}", other);
      }
    }
    transport->finish(true);
    return "";
  }));
}

// ---- messages ----

/// Message `number` from one rank to another: its sizes and contents follow from that.
struct SampleMessage {
  Bytes head;
  std::vector<Bytes> parts;
};

SampleMessage message_of(int from, int to, int number) {
  constexpr std::array<std::size_t, 5> heads = {1, 200, 5000, 70'000, 300'000};
  const std::vector<std::vector<std::size_t>> parts = {
      {}, {1}, {40'000}, {0, 33'000, 7}, {3'000'000}, {100'000, 100'000, 0, 100'000, 1}};
  std::minstd_rand random(static_cast<unsigned>(1 + from * 10'007 + to * 101 + number * 7919));
  const auto fill = [&](std::size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    return bytes;
  };
  const auto pick = static_cast<std::size_t>(number);
  SampleMessage message{.head = fill(std::max(heads[pick % heads.size()], sizeof(int))),
                        .parts = {}};
  std::memcpy(message.head.data(), &number, sizeof(number));
  for (const std::size_t size : parts[(pick * 5 + 1) % parts.size()]) {
    message.parts.push_back(fill(size));
  }
  return message;
}

/// Compares what arrives with what it should be.
class MessageChecker final : public MessageTransport::Receiver {
 public:
  MessageChecker(int rank, int size) : rank_(rank), next_(static_cast<std::size_t>(size)) {}

  std::vector<Part> arrive(int from, std::span<const std::byte> head,
                           std::uint64_t& token) override {
    const int number = next_[static_cast<std::size_t>(from)]++;
    MessageTransfer awaited{
        .from = from, .number = number, .expected = message_of(from, rank_, number)};
    if (!std::ranges::equal(head, awaited.expected.head)) {
      problem = fmt::format("head {} from rank {} is another one", number, from);
    }
    for (const Bytes& part : awaited.expected.parts) {
      awaited.places.emplace_back(part.size());
    }
    token = ++last_token_;
    const MessageTransfer& kept = awaited_.emplace(token, std::move(awaited)).first->second;
    std::vector<Part> places;
    for (const Bytes& place : kept.places) {
      places.push_back({const_cast<std::byte*>(place.data()), place.size()});
    }
    return places;
  }

  void arrived(std::uint64_t token) override {
    const auto at = awaited_.find(token);
    if (at == awaited_.end()) {
      problem = "a message arrives twice, or one that was not announced";
      return;
    }
    if (at->second.places != at->second.expected.parts) {
      problem = fmt::format("the parts of message {} from rank {} are other ones",
                            at->second.number, at->second.from);
    }
    awaited_.erase(at);
    ++whole;
  }

  void sent(std::uint64_t token) override {
    const auto at = sources.find(token);
    if (at == sources.end()) {
      problem = "'sent' is reported twice, or of a message that was not sent";
      return;
    }
    for (Bytes& part : at->second.parts) {
      std::ranges::fill(part, std::byte{0xEE});  // the receiver must have it, or a copy
    }
    old.push_back(std::move(at->second));  // the memory stays
    sources.erase(at);
  }

  void lost(int rank, std::string_view why) override {
    losses[rank] = why;
    if (!may_lose) {
      problem = fmt::format("rank {} is lost: {}", rank, why);
    }
  }

  std::string problem;
  int whole = 0;
  bool may_lose = false;
  std::map<int, std::string> losses;
  std::map<std::uint64_t, SampleMessage> sources;  // that are being sent, by token
  std::list<SampleMessage> old;

 private:
  struct MessageTransfer {
    int from = -1;
    int number = 0;
    SampleMessage expected;
    std::vector<Bytes> places{};
  };
  int rank_;
  std::vector<int> next_;
  std::uint64_t last_token_ = 0;
  std::map<std::uint64_t, MessageTransfer> awaited_;
};

void send_to(MessageTransport& transport, MessageChecker& receiver, int from, int to, int number,
             std::uint64_t token) {
  SampleMessage& message = receiver.sources[token] = message_of(from, to, number);
  std::vector<Part> parts;
  for (Bytes& part : message.parts) {
    parts.push_back({part.data(), part.size()});
  }
  transport.send(to, message.head, parts, token);
}

/// Moves messages until the condition holds. False: it did not within 20 s.
bool progress_until(MessageTransport& transport, MessageChecker& receiver,
                    const std::function<bool()>& condition) {
  constexpr double longest = 20;
  Stopwatch watch;
  while (!condition()) {
    if (!transport.progress(receiver)) {
      usleep(50);
    }
    if (watch.waited() > longest || !receiver.problem.empty()) {
      return false;
    }
  }
  return true;
}

std::string messages_arrive(const std::string& name) {
  constexpr int size = 3;
  constexpr int count = 30;
  return problem_of(run_ranks(size, [&](int rank) -> std::string {
    const auto transport = transport_of(name);
    transport->exchange(rank, size, text_of_rank(rank));
    MessageChecker receiver(rank, size);
    std::uint64_t token = 0;
    for (int number = 0; number < count; ++number) {
      for (int to = 0; to < size; ++to) {
        if (to != rank) {
          send_to(*transport, receiver, rank, to, number, ++token);
        }
      }
      transport->progress(receiver);
    }
    const auto all = [&] {
      return receiver.whole >= count * (size - 1) && receiver.sources.empty();
    };
    if (!progress_until(*transport, receiver, all)) {
      return !receiver.problem.empty()
                 ? receiver.problem
                 : fmt::format(
                       "after 20 s, {} of {} messages have arrived, and {} that were sent "
                       "are not reported",
                       receiver.whole, count * (size - 1), receiver.sources.size());
    }
    // All must have everything before they end: one more message from each, as a barrier.
    for (int to = 0; to < size; ++to) {
      if (to != rank) {
        send_to(*transport, receiver, rank, to, count, ++token);
      }
    }
    const auto more = [&] {
      return receiver.whole == (count + 1) * (size - 1) && receiver.sources.empty();
    };
    if (!progress_until(*transport, receiver, more)) {
      return receiver.problem.empty() ? "the last message does not arrive" : receiver.problem;
    }
    transport->finish(true);
    return "";
  }));
}

/// One rank sends to another one that does nothing for a while.
std::string nothing_waits(const std::string& name) {
  constexpr int count = 60;
  return problem_of(run_ranks(2, [&](int rank) -> std::string {
    const auto transport = transport_of(name);
    transport->exchange(rank, 2, text_of_rank(rank));
    MessageChecker receiver(rank, 2);
    double longest = 0;
    const auto timed = [&](const std::function<void()>& call) {
      Stopwatch watch;
      call();
      longest = std::max(longest, watch.waited());
    };
    if (rank == 1) {
      sleep(2);
    } else {
      for (int number = 0; number < count; ++number) {
        timed([&] {
          send_to(*transport, receiver, 0, 1, number, static_cast<std::uint64_t>(number) + 1);
        });
        timed([&] { transport->progress(receiver); });
      }
    }
    const auto done = [&] {
      timed([&] { transport->progress(receiver); });
      return rank == 0 ? receiver.sources.empty() && receiver.whole == 1 : receiver.whole == count;
    };
    const auto answered = [&] { return receiver.sources.empty(); };
    bool all = progress_until(*transport, receiver, done);
    if (all && rank == 1) {  // the first rank stays until it has an answer
      send_to(*transport, receiver, 1, 0, 0, 1);
      all = progress_until(*transport, receiver, answered);
    }
    if (!all) {
      return receiver.problem.empty() ? "the messages do not arrive within 20 s" : receiver.problem;
    }
    transport->finish(true);
    constexpr double too_long = 1;
    return rank == 0 && longest > too_long
               ? fmt::format(
                     "a call of send or progress took {:.1f} s while the receiver did "
                     "nothing",
                     longest)
               : "";
  }));
}

/// The last of three ranks is killed; the others learn of that one and of no other.
std::string deaths_are_noticed(const std::string& name) {
  constexpr int size = 3;
  RankEnds ends = run_ranks(size, [&](int rank) -> std::string {
    const auto transport = transport_of(name);
    transport->exchange(rank, size, text_of_rank(rank));
    MessageChecker receiver(rank, size);
    receiver.may_lose = true;
    for (int to = 0; to < size; ++to) {
      if (to != rank) {
        send_to(*transport, receiver, rank, to, 0, static_cast<std::uint64_t>(to) + 1);
      }
    }
    if (!progress_until(*transport, receiver,
                        [&] { return receiver.whole >= size - 1 && receiver.sources.empty(); })) {
      return receiver.problem.empty() ? "the first messages do not arrive" : receiver.problem;
    }
    if (rank == size - 1) {
      Stopwatch watch;
      constexpr double others_take = 0.3;  // seconds, until they have its message
      progress_until(*transport, receiver, [&] { return watch.waited() > others_take; });
      raise(SIGKILL);
    }
    Stopwatch watch;
    if (!progress_until(*transport, receiver, [&] { return receiver.losses.contains(size - 1); })) {
      return "a rank that was killed is not reported as lost within 20 s";
    }
    const double took = watch.waited();
    if (receiver.losses.size() != 1) {
      return "a rank that lives is reported as lost";
    }
    transport->finish(false);
    const double ended = watch.waited() - took;
    constexpr double too_long = 5;
    return ended > too_long ? fmt::format("finish(false) waits, for {:.1f} s", ended) : "";
  });
  if (ends.back() == "ended") {
    ends.back().clear();
  }
  return problem_of(ends);
}

std::string strangers_are_refused(const std::string& name) {
  const auto alone = [&](int rank) -> std::string {
    if (rank == 1) {
      usleep(200'000);
      collective::hold_run_key(RunKey::random());
    }
    transport_of(name)->exchange(rank, 2, text_of_rank(rank));
    return "met";
  };
  constexpr double limit = 4;
  const RankEnds ends = run_ranks(2, alone, limit);
  if (ends[0].starts_with("refused: ")) {
    throw SkippedCheck{ends[0].substr(std::string_view("refused: ").size())};
  }
  if (ends[0] == "met" || ends[1] == "met") {
    return "a process with another key has met the ranks of the run";
  }
  const RankEnds others = run_ranks(
      2,
      [&](int rank) -> std::string {
        transport_of(name)->exchange(rank, 2 + rank, text_of_rank(rank));
        return "met";
      },
      limit);
  return others[0] == "met" || others[1] == "met"
             ? "ranks of runs with another number of ranks have met"
             : "";
}

/// Sums and copies of one rank's numbers, as bytes.
Bytes results_of(World& world) {
  std::minstd_rand random(static_cast<unsigned>(world.rank()) + 1);
  constexpr std::int64_t count = 50'000;
  std::vector<float> own(count);
  for (float& x : own) {
    x = static_cast<float>(random()) * 1e-7F;
  }
  std::vector<float> all(static_cast<std::size_t>(count * world.size()));
  world.everyone().all_gather(own.data(), all.data(), count, DType::f32);
  world.everyone().all_reduce(own.data(), own.data(), count, DType::f32);
  all.insert(all.end(), own.begin(), own.end());
  Bytes bytes(all.size() * sizeof(float));
  std::memcpy(bytes.data(), all.data(), bytes.size());
  return bytes;
}

std::string machines_agree(const std::string& name) {
  constexpr int size = 4;
  std::vector<Bytes> expected(size);
  collective::run_threads(size, [&](World& world) {
    expected[static_cast<std::size_t>(world.rank())] = results_of(world);
  });
  return problem_of(run_ranks(size, [&](int rank) -> std::string {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    setenv("TESSERA_MACHINE", fmt::format("m{}", rank / 2).c_str(), 1);
    Bytes found;
    const int code = collective::join_launch(
        {.ranks = size, .timeout_seconds = 20, .transport = name}, [&](World& world) {
          found = results_of(world);
          return 0;
        });
    if (code != 0) {
      return fmt::format("exit code {}", code);
    }
    return found == expected[static_cast<std::size_t>(rank)]
               ? ""
               : "all_gather and all_reduce of two machines have other bits than those of one";
  }));
}

}  // namespace

std::vector<SuiteCheck> transport_suite(const std::string& name) {
  return {
      {"ranks meet", [=] { return ranks_meet(name); }},
      {"messages arrive whole and in order", [=] { return messages_arrive(name); }},
      {"send and progress do not wait", [=] { return nothing_waits(name); }},
      {"a rank that dies is reported", [=] { return deaths_are_noticed(name); }},
      {"who does not belong to the run is refused", [=] { return strangers_are_refused(name); }},
      {"two machines have the bits of one", [=] { return machines_agree(name); }}};
}

}  // namespace tessera::plugin_suite
