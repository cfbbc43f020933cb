module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :external;
import :launchers;
import :messages;
import :start;

namespace tessera::collective {
namespace {

constexpr std::string_view magic = "tessera launcher 1";
constexpr double between_beats = 1;     // seconds
constexpr double shortest_silence = 5;  // seconds; a launcher may wait for a processor
constexpr std::size_t longest_message = std::size_t{16} << 20;

/// The first byte of a message.
enum class Word : std::uint8_t {
  introduction,  ///< of a machine, to machine 0
  refused,       ///< nobody starts, for this reason
  welcome,       ///< all are there: their names and numbers of ranks
  ready,         ///< to machine 0: this one can begin an attempt
  begin,         ///< where the ranks of the attempt meet
  beat,          ///< the launcher is alive
  error,         ///< the first error of a machine
  ended,         ///< to machine 0: all ranks here have ended
  decision,      ///< of machine 0: whether the ranks start again
};

Writer message(Word word) {
  Writer writer;
  writer.put(word);
  return writer;
}

template <class T>
void put_all(Writer& writer, const std::vector<T>& values) {
  writer.put(static_cast<std::uint64_t>(values.size()));
  for (const T& value : values) {
    writer.put(value);
  }
}

template <class T>
std::vector<T> get_all(Reader& reader) {
  std::vector<T> values;
  for (auto left = reader.get<std::uint64_t>(); left > 0; --left) {
    values.push_back(reader.get<T>());
  }
  return values;
}

/// The first line in which two texts differ, of each.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream as(a);
  std::istringstream bs(b);
  std::string one;
  std::string other;
  while (true) {
    const bool more = static_cast<bool>(std::getline(as, one));
    const bool others = static_cast<bool>(std::getline(bs, other));
    if (!more || !others || one != other) {
      constexpr std::size_t most = 120;
      const auto shown = [&](bool is, std::string line) {
        line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
        return is ? line.substr(0, most) : std::string("nothing more");
      };
      return {shown(more, one), shown(others, other)};
    }
  }
}

std::string random_key() {
  std::random_device device;
  std::string key;
  for (int i = 0; i < 4; ++i) {
    key += fmt::format("{:08x}", device());
  }
  return key;
}

}  // namespace

void RankMeeting::enter(int rank) {
  setenv("TESSERA_MEET", to_string(at).c_str(), 1);
  setenv("TESSERA_MEET_KEY", key.c_str(), 1);
  unsetenv("TESSERA_MEET_LISTENER");
  if (rank == 0) {
    setenv("TESSERA_MEET_LISTENER", std::to_string(listener.release()).c_str(), 1);
  } else {
    listener.close();
  }
}

struct Launchers::Peer {
  explicit Peer(Socket socket) : stream(std::move(socket), longest_message) {}

  MessageStream stream;
  int machine = -1;  // -1: it has not said yet
  int ranks = 0;
  std::string name{};
  bool lost = false;
  Stopwatch since{};  // the last message
  double heard = 0;
  std::optional<std::string> answer{};  // a message that somebody waits for
};

/// What a launcher says of itself.
struct Launchers::Introduction {
  std::uint64_t protocol = 0;
  std::string job;
  LauncherPlace place;
  int ranks = 0;  // of the world
  int here = 0;
  std::string name;
  std::vector<std::pair<std::string, std::string>> agreed;
};

Launchers::Launchers(const LaunchOptions& options)
    : options_(options),
      place_(options.place.value()),
      meet_(parse_endpoint("--meet", place_.meet)),
      silence_(options.stuck_seconds > 0 ? std::max(options.stuck_seconds, shortest_silence)
                                         : wait_limit()),
      here_(place_.ranks_of(options.ranks)),
      beat_(std::make_unique<Stopwatch>()) {
  const std::string own = fmt::format("{} ({})", place_.machine, machine_name());
  if (place_.machine == 0) {
    listen_for_all(own);
  } else {
    join_first(own);
  }
}

Launchers::~Launchers() = default;

std::string Launchers::introduce() const {
  Writer writer = message(Word::introduction);
  writer.put(magic);
  writer.put(protocol_number());
  writer.put(std::string_view(environment_variable("TESSERA_JOB").value_or("")));
  writer.put(place_.machine);
  writer.put(place_.machines);
  writer.put(options_.ranks);
  writer.put(here_);
  writer.put(std::string_view(machine_name()));
  writer.put(static_cast<std::uint64_t>(options_.agreed.size()));
  for (const auto& [what, text] : options_.agreed) {
    writer.put(std::string_view(what));
    writer.put(std::string_view(text));
  }
  return std::string(writer.text());
}

std::string Launchers::objection(const Introduction& theirs) const {
  const std::string who = fmt::format("machine {}", theirs.name);
  if (theirs.protocol != protocol_number()) {
    return fmt::format("{} has another version of Tessera than machine 0; install the same on all",
                       who);
  }
  if (theirs.job != environment_variable("TESSERA_JOB").value_or("")) {
    return fmt::format("{} is of another job than machine 0 (TESSERA_JOB is '{}' and '{}')", who,
                       theirs.job, environment_variable("TESSERA_JOB").value_or(""));
  }
  if (theirs.place.machines != place_.machines) {
    return fmt::format("{} was started with --machines {}, and machine 0 with --machines {}", who,
                       theirs.place.machines, place_.machines);
  }
  const bool taken = theirs.place.machine <= 0 || std::ranges::any_of(peers_, [&](const auto& p) {
                       return p->machine == theirs.place.machine;
                     });
  if (taken || theirs.place.machine >= place_.machines) {
    return fmt::format(
        "two launchers were started with --machine {}; give each its own number, "
        "0 to {}",
        theirs.place.machine, place_.machines - 1);
  }
  if (theirs.ranks != options_.ranks) {
    return fmt::format(
        "the run of {} has {} ranks, and that of machine 0 has {}; start all with "
        "the same config",
        who, theirs.ranks, options_.ranks);
  }
  for (std::size_t i = 0; i < std::max(theirs.agreed.size(), options_.agreed.size()); ++i) {
    if (i >= theirs.agreed.size() || i >= options_.agreed.size() ||
        theirs.agreed[i].first != options_.agreed[i].first) {
      return fmt::format("{} runs another program than machine 0; start the same on all", who);
    }
    if (theirs.agreed[i].second != options_.agreed[i].second) {
      const auto [other, own] =
          first_difference(theirs.agreed[i].second, options_.agreed[i].second);
      return fmt::format(
          "{} has another {} than machine 0 (there: {}; here: {}); start all with "
          "the same command and the same files",
          who, options_.agreed[i].first, other, own);
    }
  }
  return "";
}

/// Whether the peer is still there. Error (input), told to all: it cannot take part.
bool Launchers::hear_introduction(Peer& peer) {
  peer.stream.progress();
  const std::optional<std::string> text = peer.stream.receive();
  if (!text) {
    return peer.stream.socket().open();
  }
  if (peer.machine >= 0) {
    return true;  // a beat
  }
  Introduction theirs;
  try {
    Reader reader(*text);
    if (reader.get<Word>() != Word::introduction || reader.text() != magic) {
      return false;  // something else than a launcher
    }
    theirs.protocol = reader.get<std::uint64_t>();
    theirs.name = peer.stream.socket().other_end().host;
    if (theirs.protocol == protocol_number()) {
      theirs.job = reader.text();
      theirs.place.machine = reader.get<int>();
      theirs.place.machines = reader.get<int>();
      theirs.ranks = reader.get<int>();
      theirs.here = reader.get<int>();
      theirs.name = fmt::format("{} ({})", theirs.place.machine, reader.text());
      for (auto left = reader.get<std::uint64_t>(); left > 0; --left) {
        std::string what = reader.text();
        theirs.agreed.emplace_back(std::move(what), reader.text());
      }
    }
  } catch (const Error&) {
    return false;
  }
  if (const std::string why = objection(theirs); !why.empty()) {
    const std::string all = "launch: " + why;
    refuse_all(all, ErrorKind::input);
    fail_input(all);
  }
  peer.machine = theirs.place.machine;
  peer.ranks = theirs.here;
  peer.name = theirs.name;
  return true;
}

void Launchers::refuse_all(const std::string& text, ErrorKind kind) {
  Writer writer = message(Word::refused);
  writer.put(kind);
  writer.put(std::string_view(text));
  send_to_all(writer.text());
  Stopwatch watch;
  const auto left = [](const auto& peer) {
    peer->stream.progress();
    return peer->stream.flushed();
  };
  while (!std::ranges::all_of(peers_, left) && watch.waited() < 2) {
    poll(nullptr, 0, 10);
  }
}

std::string Launchers::missing() const {
  std::vector<int> numbers;
  for (int machine = 1; machine < place_.machines; ++machine) {
    if (std::ranges::none_of(peers_, [&](const auto& p) { return p->machine == machine; })) {
      numbers.push_back(machine);
    }
  }
  return fmt::format("machine{} {} of {}", numbers.size() == 1 ? "" : "s", list_ranks(numbers),
                     place_.machines);
}

void Launchers::set_ranks(const std::vector<int>& ranks) {
  first_ = std::accumulate(ranks.begin(), ranks.begin() + place_.machine, 0);
}

void Launchers::listen_for_all(const std::string& own) {
  listener_ = std::make_unique<Socket>(listen_at(meet_.port));
  Patience patience;
  const auto all_here = [&] {
    return std::ranges::count_if(peers_, [](const auto& p) { return p->machine > 0; }) ==
           place_.machines - 1;
  };
  while (!all_here()) {
    std::vector<pollfd> sockets{{listener_->descriptor(), POLLIN, 0}};
    for (const auto& peer : peers_) {
      sockets.push_back({peer->stream.socket().descriptor(), POLLIN, 0});
    }
    poll(sockets.data(), sockets.size(), 100);
    if (Socket socket = accept_from(*listener_); socket.open()) {
      peers_.push_back(std::make_unique<Peer>(std::move(socket)));
    }
    // One that has gone may come again, with what was wrong corrected.
    std::erase_if(peers_, [&](const auto& peer) { return !hear_introduction(*peer); });
    if (!patience.look([&] {
          return fmt::format("launch: {} did not come to {} yet", missing(), place_.meet);
        })) {
      const std::string text = fmt::format(
          "launch: {} did not come to {} within {:.4g} s; start the same command there, with its "
          "number in --machine",
          missing(), place_.meet, patience.limit());
      refuse_all(text, ErrorKind::run);
      fail(text);
    }
  }
  std::erase_if(peers_, [](const auto& peer) { return peer->machine < 0; });
  std::ranges::sort(peers_, {}, [](const auto& peer) { return peer->machine; });
  std::vector<int> ranks{here_};
  names_ = {own};
  for (const auto& peer : peers_) {
    ranks.push_back(peer->ranks);
    names_.push_back(peer->name);
  }
  if (const int sum = std::accumulate(ranks.begin(), ranks.end(), 0); sum != options_.ranks) {
    const std::string text = fmt::format(
        "launch: the machines start {} = {} ranks, and the run has {}; say how many each starts "
        "(--here)",
        fmt::join(ranks, " + "), sum, options_.ranks);
    refuse_all(text, ErrorKind::input);
    fail_input(text);
  }
  set_ranks(ranks);
  Writer writer = message(Word::welcome);
  put_all(writer, ranks);
  for (const std::string& name : names_) {
    writer.put(std::string_view(name));
  }
  send_to_all(writer.text());
}

void Launchers::join_first(const std::string& own) {
  Patience patience;
  std::string why;
  Socket socket;
  while (!(socket = connect_within(meet_, 1, why)).open()) {
    if (!patience.look([&] {
          return fmt::format("launch: machine 0 does not listen at {} yet ({})", place_.meet, why);
        })) {
      fail({.thing = "launch",
            .wrong = fmt::format("machine 0 cannot be reached at {} within {:.4g} s ({})",
                                 place_.meet, patience.limit(), why),
            .advice = fmt::format("start the same command on {}, with --machine 0, and let it "
                                  "reach port {} of it",
                                  meet_.host, meet_.port)});
    }
    poll(nullptr, 0, 100);
  }
  peers_.push_back(std::make_unique<Peer>(std::move(socket)));
  Peer& first = *peers_.front();
  first.machine = 0;
  first.name = fmt::format("0 ({})", meet_.host);
  first.stream.send(introduce());
  std::optional<std::string> answer;
  while (!answer) {
    pollfd waiting{first.stream.socket().descriptor(), POLLIN, 0};
    poll(&waiting, 1, 100);
    const bool alive = first.stream.progress();
    answer = first.stream.receive();
    if (!answer && !alive) {
      fail({.thing = "launch",
            .wrong = fmt::format("machine 0 ended before all machines had come ({})",
                                 first.stream.why()),
            .advice =
                fmt::format("what listens at {} must be the launcher of machine 0", place_.meet)});
    }
    if (!answer && !patience.look([&] {
          return std::string("launch: other machines did not come to machine 0 yet");
        })) {
      fail({.thing = "launch",
            .wrong = fmt::format("not all of {} machines came to {} within {:.4g} s",
                                 place_.machines, place_.meet, patience.limit()),
            .advice = "what machine 0 prints names those that are missing"});
    }
  }
  Reader reader(*answer);
  const Word word = reader.get<Word>();
  if (word == Word::refused) {
    const auto kind = reader.get<ErrorKind>();
    throw Error(reader.text(), kind);
  }
  require(word == Word::welcome, "launch: machine 0 answers something else");
  const std::vector<int> ranks = get_all<int>(reader);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    names_.push_back(reader.text());
  }
  first.name = names_.front();
  names_[static_cast<std::size_t>(place_.machine)] = own;
  set_ranks(ranks);
}

Launchers::Peer* Launchers::peer_of(int machine) {
  const auto at =
      std::ranges::find_if(peers_, [&](const auto& peer) { return peer->machine == machine; });
  return at == peers_.end() ? nullptr : at->get();
}

void Launchers::send_to_all(std::string_view text, const Peer* except) {
  for (const auto& peer : peers_) {
    if (peer.get() != except && !peer->lost) {
      peer->stream.send(text);
      peer->stream.progress();
    }
  }
}

void Launchers::lose(Peer& peer, const std::string& why, Control* control) {
  peer.lost = true;
  lost_ = fmt::format("machine {} is lost: {}", peer.name, why);
  if (control != nullptr) {
    control->publish_error(-1, lost_, ErrorKind::run, true);
  }
}

void Launchers::fail_lost() const { fail("launch: " + lost_); }

void Launchers::take(Peer& from, const std::string& text, Control* control) {
  Reader reader(text);
  switch (reader.get<Word>()) {
    case Word::beat:
      break;
    case Word::error: {
      FirstError error;
      error.rank = reader.get<int>();
      error.kind = reader.get<ErrorKind>();
      error.step = reader.get<std::int64_t>();
      const bool about_calls = reader.get<std::uint8_t>() != 0;
      error.where = reader.text();
      error.text = reader.text();
      if (control != nullptr) {
        control->take_error(error, about_calls);
      }
      send_to_all(text, &from);
      break;
    }
    default:
      from.answer = text;
  }
}

void Launchers::move(Control* control) {
  if (const double now = beat_->waited(); now - beaten_ > between_beats) {
    beaten_ = now;
    send_to_all(message(Word::beat).text());
  }
  for (const auto& peer : peers_) {
    if (peer->lost) {
      continue;
    }
    const bool alive = peer->stream.progress();
    const double now = peer->since.waited();
    while (!peer->answer) {  // what follows an answer stays until that is taken
      const std::optional<std::string> text = peer->stream.receive();
      if (!text) {
        break;
      }
      peer->heard = now;
      take(*peer, *text, control);
    }
    if (!alive && !peer->answer) {
      lose(*peer, fmt::format("its launcher has ended, or the link ({})", peer->stream.why()),
           control);
    } else if (!peer->answer && now - peer->heard > silence_) {
      lose(*peer, fmt::format("nothing was heard of its launcher for {:.3g} s", now - peer->heard),
           control);
    }
  }
}

RankMeeting Launchers::begin() {
  told_ = false;
  const auto wait_for = [&](Peer& peer) {
    while (!peer.answer) {
      move(nullptr);
      if (!lost_.empty()) {
        fail_lost();
      }
      poll(nullptr, 0, 5);
    }
    return *std::exchange(peer.answer, std::nullopt);
  };
  RankMeeting meeting;
  if (place_.machine != 0) {
    Peer& first = *peers_.front();
    first.stream.send(message(Word::ready).text());
    const std::string text = wait_for(first);
    Reader reader(text);
    require(reader.get<Word>() == Word::begin, "launch: machine 0 does not begin");
    meeting.at = {first.stream.socket().other_end().host, reader.get<int>()};
    meeting.key = reader.text();
    return meeting;
  }
  for (const auto& peer : peers_) {
    wait_for(*peer);
  }
  meeting.listener = listen_at(0);
  meeting.at = {meet_.host, meeting.listener.own_end().port};
  meeting.key = random_key();
  Writer writer = message(Word::begin);
  writer.put(meeting.at.port);
  writer.put(std::string_view(meeting.key));
  send_to_all(writer.text());
  return meeting;
}

void Launchers::serve(Control& control) {
  move(&control);
  if (!told_ && control.failed.load() == 2) {
    told_ = true;
    if (control.failed_elsewhere.load() == 0) {
      const FirstError error = control.first_error();
      Writer writer = message(Word::error);
      writer.put(error.rank);
      writer.put(error.kind);
      writer.put(error.step);
      writer.put(static_cast<std::uint8_t>(control.failed_in_calls.load() != 0));
      writer.put(std::string_view(error.where));
      writer.put(std::string_view(error.text));
      send_to_all(writer.text());
    }
  }
}

bool Launchers::agree(Control& control, EndedRanks& ended,
                      const std::function<bool(const EndedRanks& all)>& again) {
  serve(control);
  const auto pause = [&] {
    serve(control);
    poll(nullptr, 0, 5);
  };
  if (place_.machine != 0) {
    Peer& first = *peers_.front();
    Writer writer = message(Word::ended);
    writer.put(ended.code);
    writer.put(ended.from_outside);
    writer.put(ended.interrupted);
    writer.put(ended.step);
    put_all(writer, ended.kept);
    first.stream.send(writer.text());
    while (!first.answer && !first.lost) {
      pause();
    }
    if (first.lost) {
      return false;
    }
    const std::string text = *std::exchange(first.answer, std::nullopt);
    Reader reader(text);
    require(reader.get<Word>() == Word::decision, "launch: machine 0 says something else");
    const bool started_again = reader.get<bool>();
    ended.code = reader.get<int>();
    ended.kept = get_all<std::int64_t>(reader);
    return started_again;
  }
  for (const auto& peer : peers_) {
    while (!peer->answer && !peer->lost) {
      pause();
    }
    if (peer->lost) {
      ended.from_outside = true;
      continue;
    }
    const std::string text = *std::exchange(peer->answer, std::nullopt);
    Reader reader(text);
    require(reader.get<Word>() == Word::ended, "launch: a machine says something else");
    const int code = reader.get<int>();
    ended.code = ended.code != 0 ? ended.code : code;
    ended.from_outside |= reader.get<bool>();
    ended.interrupted |= reader.get<bool>();
    ended.step = std::max(ended.step, reader.get<std::int64_t>());
    const std::vector<std::int64_t> kept = get_all<std::int64_t>(reader);
    std::erase_if(ended.kept,
                  [&](std::int64_t step) { return std::ranges::find(kept, step) == kept.end(); });
  }
  const bool started_again = lost_.empty() && again(ended);
  Writer writer = message(Word::decision);
  writer.put(started_again);
  writer.put(ended.code);
  put_all(writer, ended.kept);
  send_to_all(writer.text());
  Stopwatch watch;
  while (std::ranges::any_of(peers_, [](const auto& p) { return !p->stream.flushed(); }) &&
         watch.waited() < 2) {
    move(&control);
  }
  return started_again;
}

void Launchers::leave() {
  listener_.reset();
  peers_.clear();
}

}  // namespace tessera::collective
