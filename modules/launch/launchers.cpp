module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
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
  stop,          ///< to machine 0: no longer wait for lost machines
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

void put_held(Writer& writer, const HeldSteps& held) {
  put_all(writer, held.own);
  put_all(writer, held.of_other);
}

HeldSteps get_held(Reader& reader) {
  HeldSteps held;
  held.own = get_all<std::int64_t>(reader);
  held.of_other = get_all<std::int64_t>(reader);
  return held;
}

using Texts = std::vector<std::pair<std::string, std::string>>;

void put_texts(Writer& writer, const Texts& texts) {
  writer.put(static_cast<std::uint64_t>(texts.size()));
  for (const auto& [what, text] : texts) {
    writer.put(std::string_view(what));
    writer.put(std::string_view(text));
  }
}

Texts get_texts(Reader& reader) {
  Texts texts;
  for (auto left = reader.get<std::uint64_t>(); left > 0; --left) {
    std::string what = reader.text();
    texts.emplace_back(std::move(what), reader.text());
  }
  return texts;
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

std::int64_t newest_common(const std::vector<HeldSteps>& held) {
  std::int64_t newest = -1;
  const auto has = [](const std::vector<std::int64_t>& steps, std::int64_t step) {
    return std::ranges::find(steps, step) != steps.end();
  };
  const auto all_have = [&](std::int64_t step) {
    for (std::size_t m = 0; m < held.size(); ++m) {
      if (!has(held[m].own, step) && !has(held[(m + 1) % held.size()].of_other, step)) {
        return false;
      }
    }
    return true;
  };
  // The state of the first machine is in one of two memories.
  for (const std::vector<std::int64_t>& steps :
       {held.front().own, held[1 % held.size()].of_other}) {
    for (const std::int64_t step : steps) {
      newest = step > newest && all_have(step) ? step : newest;
    }
  }
  return newest;
}

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
  explicit Peer(Socket socket)
      : host(socket.other_end().host), stream(std::move(socket), longest_message) {}

  std::string host;  // numeric
  MessageStream stream;
  int machine = -1;  // -1: it has not said yet
  int ranks = 0;
  std::string name{};
  bool lost = false;
  int attempts = 0;  // that it has seen
  HeldSteps held{};  // when it came
  Stopwatch since{};
  double heard = 0;                     // the last message
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
  int attempts = 0;
  HeldSteps held;
  Texts agreed;
  Texts at_start;
};

Launchers::Launchers(const LaunchOptions& options)
    : options_(options),
      place_(options.place.value()),
      meet_(parse_endpoint("--meet", place_.meet)),
      silence_(options.stuck_seconds > 0 ? std::max(options.stuck_seconds, shortest_silence)
                                         : wait_limit()),
      here_(place_.ranks_of(options.ranks)),
      beat_(std::make_unique<Stopwatch>()) {
  const auto machines = static_cast<std::size_t>(place_.machines);
  names_.resize(machines);
  ranks_.resize(machines);
  names_[static_cast<std::size_t>(place_.machine)] =
      fmt::format("{} ({})", place_.machine, machine_name());
  ranks_[static_cast<std::size_t>(place_.machine)] = here_;
  if (place_.machine == 0) {
    listen_for_all();
  } else {
    join_first(wait_limit(), [] { return false; });
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
  writer.put(attempts_);
  put_held(writer, held_);
  put_texts(writer, options_.agreed);
  put_texts(writer, options_.agreed_at_start);
  return std::string(writer.text());
}

std::string Launchers::objection(const Introduction& theirs, const Peers& others) const {
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
  const auto has_place = [&](const auto& p) { return p->machine == theirs.place.machine; };
  const bool taken = theirs.place.machine <= 0 || std::ranges::any_of(peers_, has_place) ||
                     std::ranges::any_of(others, has_place);
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
  Texts all = theirs.agreed;
  Texts own = options_.agreed;
  const bool begun = attempts_ > 0 || theirs.attempts > 0 ||
                     std::ranges::any_of(others, [](const auto& p) { return p->attempts > 0; });
  if (!begun) {
    all.insert(all.end(), theirs.at_start.begin(), theirs.at_start.end());
    own.insert(own.end(), options_.agreed_at_start.begin(), options_.agreed_at_start.end());
  }
  for (std::size_t i = 0; i < std::max(all.size(), own.size()); ++i) {
    if (i >= all.size() || i >= own.size() || all[i].first != own[i].first) {
      return fmt::format("{} runs another program than machine 0; start the same on all", who);
    }
    if (all[i].second != own[i].second) {
      const auto [there, here] = first_difference(all[i].second, own[i].second);
      return fmt::format(
          "{} has another {} than machine 0 (there: {}; here: {}); start all with "
          "the same command and the same files",
          who, own[i].first, there, here);
    }
  }
  if (attempts_ > 0 && theirs.here != ranks_[static_cast<std::size_t>(theirs.place.machine)]) {
    return fmt::format("{} starts {} ranks, and the machine that is lost started {}", who,
                       theirs.here, ranks_[static_cast<std::size_t>(theirs.place.machine)]);
  }
  return "";
}

/// Whether the peer is still there. Error (input): it cannot take part.
bool Launchers::hear_introduction(Peer& peer, Peers& others) {
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
    theirs.name = peer.host;
    if (theirs.protocol == protocol_number()) {
      theirs.job = reader.text();
      theirs.place.machine = reader.get<int>();
      theirs.place.machines = reader.get<int>();
      theirs.ranks = reader.get<int>();
      theirs.here = reader.get<int>();
      theirs.name = fmt::format("{} ({})", theirs.place.machine, reader.text());
      theirs.attempts = reader.get<int>();
      theirs.held = get_held(reader);
      theirs.agreed = get_texts(reader);
      theirs.at_start = get_texts(reader);
    }
  } catch (const Error&) {
    return false;
  }
  if (const std::string why = objection(theirs, others); !why.empty()) {
    fail_input("launch: " + why);
  }
  peer.machine = theirs.place.machine;
  peer.ranks = theirs.here;
  peer.name = theirs.name;
  peer.attempts = theirs.attempts;
  peer.held = theirs.held;
  return true;
}

void Launchers::hear_introductions(Peers& peers) {
  std::vector<pollfd> sockets{{listener_->descriptor(), POLLIN, 0}};
  for (const auto& peer : peers) {
    sockets.push_back({peer->stream.socket().descriptor(), POLLIN, 0});
  }
  poll(sockets.data(), sockets.size(), attempts_ > 0 ? 0 : 100);
  if (Socket socket = accept_from(*listener_); socket.open()) {
    peers.push_back(std::make_unique<Peer>(std::move(socket)));
  }
  // One that has gone may come again, with what was wrong corrected.
  for (std::size_t i = 0; i < peers.size();) {
    bool stays = false;
    try {
      stays = hear_introduction(*peers[i], peers);
    } catch (const Error& error) {
      Peers refused;
      refused.push_back(std::move(peers[i]));
      refuse(refused, error.what(), error.kind());
      if (attempts_ == 0) {
        peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
        refuse(peers, error.what(), error.kind());
        throw;
      }
      log(LogLevel::warning, error.what());
    }
    if (stays) {
      ++i;
    } else {
      peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

void Launchers::refuse(const Peers& peers, const std::string& text, ErrorKind kind) {
  Writer writer = message(Word::refused);
  writer.put(kind);
  writer.put(std::string_view(text));
  for (const auto& peer : peers) {
    peer->stream.send(writer.text());
  }
  Stopwatch watch;
  const auto left = [](const auto& peer) {
    peer->stream.progress();
    return peer->stream.flushed();
  };
  while (!std::ranges::all_of(peers, left) && watch.waited() < 2) {
    poll(nullptr, 0, 10);
  }
}

void Launchers::welcome(const Peers& peers) {
  Writer writer = message(Word::welcome);
  put_all(writer, ranks_);
  for (const std::string& name : names_) {
    writer.put(std::string_view(name));
  }
  writer.put(joined_.has_value());
  writer.put(joined_.value_or(JoinedAttempt{}));
  for (const auto& peer : peers) {
    peer->stream.send(writer.text());
    peer->stream.progress();
  }
}

std::string Launchers::missing(const Peers& peers) const {
  std::vector<int> numbers;
  for (int machine = 1; machine < place_.machines; ++machine) {
    const auto is = [&](const auto& p) { return p->machine == machine; };
    if (std::ranges::none_of(peers_, is) && std::ranges::none_of(peers, is)) {
      numbers.push_back(machine);
    }
  }
  return numbers.empty() ? ""
                         : fmt::format("machine{} {} of {}", numbers.size() == 1 ? "" : "s",
                                       list_ranks(numbers), place_.machines);
}

void Launchers::set_ranks(const std::vector<int>& ranks) {
  ranks_ = ranks;
  first_ = std::accumulate(ranks.begin(), ranks.begin() + place_.machine, 0);
}

void Launchers::listen_for_all() {
  listener_ = std::make_unique<Socket>(listen_at(meet_.port));
  Patience patience;
  Peers peers;
  while (!missing(peers).empty()) {
    hear_introductions(peers);
    if (!patience.look([&] {
          return fmt::format("launch: {} did not come to {} yet", missing(peers), place_.meet);
        })) {
      const std::string text = fmt::format(
          "launch: {} did not come to {} within {:.4g} s; start the same command there, with its "
          "number in --machine",
          missing(peers), place_.meet, patience.limit());
      refuse(peers, text, ErrorKind::run);
      fail(text);
    }
  }
  std::erase_if(peers, [](const auto& peer) { return peer->machine < 0; });
  std::ranges::sort(peers, {}, [](const auto& peer) { return peer->machine; });
  std::vector<int> ranks{here_};
  std::vector<HeldSteps> held(1);
  for (const auto& peer : peers) {
    ranks.push_back(peer->ranks);
    names_[static_cast<std::size_t>(peer->machine)] = peer->name;
    held.push_back(peer->held);
    attempts_ = std::max(attempts_, peer->attempts);
  }
  if (const int sum = std::accumulate(ranks.begin(), ranks.end(), 0); sum != options_.ranks) {
    const std::string text = fmt::format(
        "launch: the machines start {} = {} ranks, and the run has {}; say how many each starts "
        "(--here)",
        fmt::join(ranks, " + "), sum, options_.ranks);
    refuse(peers, text, ErrorKind::input);
    fail_input(text);
  }
  set_ranks(ranks);
  if (attempts_ > 0) {  // the others wait for a machine 0 in the place of one that is lost
    joined_ = {attempts_, newest_common(held)};
  }
  peers_ = std::move(peers);
  welcome(peers_);
}

bool Launchers::join_first(double limit, const std::function<bool()>& ended) {
  Patience patience(limit);
  std::string why;
  Socket socket;
  while (!(socket = connect_within(meet_, 1, why)).open()) {
    if (ended()) {
      return false;
    }
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
    if (ended()) {
      return false;
    }
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
  set_ranks(get_all<int>(reader));
  const std::string own = names_[static_cast<std::size_t>(place_.machine)];
  for (std::string& name : names_) {
    name = reader.text();
  }
  names_[static_cast<std::size_t>(place_.machine)] = own;
  first.name = names_.front();
  joined_.reset();
  if (const bool joins = reader.get<bool>(); joins) {
    joined_ = reader.get<JoinedAttempt>();
    attempts_ = joined_->number;
  }
  return true;
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

void Launchers::take(Peer& from, const std::string& text, Control* control) {
  Reader reader(text);
  switch (reader.get<Word>()) {
    case Word::beat:
      break;
    case Word::stop:
      stopped_ = true;
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
      } else {
        failed_ = error.text;
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

bool Launchers::idle() {
  move(nullptr);
  return failure().empty();
}

std::optional<RankMeeting> Launchers::begin(int home) {
  told_ = false;
  stopped_ = false;
  failed_.clear();
  const auto wait_for = [&](Peer& peer) {
    while (idle() && !peer.answer) {
      poll(nullptr, 0, 5);
    }
    return failure().empty() ? std::exchange(peer.answer, std::nullopt) : std::nullopt;
  };
  RankMeeting meeting;
  if (place_.machine != 0) {
    Peer& first = *peers_.front();
    Writer ready = message(Word::ready);
    ready.put(home);
    first.stream.send(ready.text());
    const std::optional<std::string> text = wait_for(first);
    if (!text) {
      return std::nullopt;
    }
    Reader reader(*text);
    require(reader.get<Word>() == Word::begin, "launch: machine 0 does not begin");
    const std::string host = first.host;
    meeting.at = {host, reader.get<int>()};
    meeting.key = reader.text();
    for (int machine = 0; machine < place_.machines; ++machine) {
      std::string at = reader.text();
      // Whoever is on the machine of machine 0 is where that is.
      at = at.empty() ? host : at;
      meeting.homes.push_back({std::move(at), reader.get<int>()});
    }
    return meeting;
  }
  meeting.homes.push_back({meet_.host, home});
  for (const auto& peer : peers_) {
    const std::optional<std::string> text = wait_for(*peer);
    if (!text) {
      return std::nullopt;
    }
    Reader reader(*text);
    require(reader.get<Word>() == Word::ready, "launch: a machine is not ready");
    meeting.homes.push_back({peer->host, reader.get<int>()});
  }
  meeting.listener = listen_at(0);
  meeting.at = {meet_.host, meeting.listener.own_end().port};
  meeting.key = random_key();
  Writer writer = message(Word::begin);
  writer.put(meeting.at.port);
  writer.put(std::string_view(meeting.key));
  for (std::size_t m = 0; m < meeting.homes.size(); ++m) {
    const bool here = m == 0 || is_loopback(meeting.homes[m]);
    writer.put(std::string_view(here ? "" : meeting.homes[m].host));
    writer.put(meeting.homes[m].port);
  }
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

bool Launchers::rejoin(Control& control, EndedRanks& ended, const std::function<void()>& pause) {
  log(LogLevel::warning,
      fmt::format("{}; this machine waits {:.4g} s for another one in its place: start the same "
                  "command, with --machine 0, where {} leads to",
                  lost_, options_.replace_seconds, place_.meet));
  peers_.clear();
  lost_.clear();
  const bool came = join_first(options_.replace_seconds, [&] {
    pause();
    ended.interrupted = control.interrupts.load() != 0;
    return ended.interrupted;
  });
  ended.kept = came && joined_ ? joined_->kept : -1;
  return came;
}

bool Launchers::replace_lost(Control& control, std::vector<HeldSteps>& held, Peers& newcomers,
                             const std::function<void()>& pause) {
  Stopwatch watch;
  std::string said;
  while (true) {
    std::erase_if(peers_, [](const auto& peer) { return peer->lost; });
    hear_introductions(newcomers);
    const std::string still = missing(newcomers);
    if (still.empty()) {
      break;
    }
    if (still != said) {
      log(LogLevel::warning,
          fmt::format("{} {} lost; the run waits {:.4g} s for another one in its place: start the "
                      "same command, with its number in --machine",
                      still, still.starts_with("machines") ? "are" : "is",
                      options_.replace_seconds));
      said = still;
    }
    if (stopped_ || control.interrupts.load() != 0 || watch.waited() > options_.replace_seconds) {
      const std::string text = fmt::format(
          "nobody has taken the place of {} (train.heal_wait); the same commands on all machines "
          "continue the last checkpoint",
          still);
      log(LogLevel::warning, text);
      refuse(newcomers, "launch: " + text, ErrorKind::run);
      return false;
    }
    move(&control);
    pause();
  }
  std::erase_if(newcomers, [](const auto& peer) { return peer->machine < 0; });
  for (const auto& peer : newcomers) {
    held[static_cast<std::size_t>(peer->machine)] = peer->held;
    names_[static_cast<std::size_t>(peer->machine)] = peer->name;
  }
  lost_.clear();
  return true;
}

bool Launchers::may_wait(const Control& control, const EndedRanks& ended) const {
  return options_.restart && options_.replace_seconds > 0 && !ended.interrupted &&
         control.first_error().kind == ErrorKind::run && control.interrupts.load() == 0;
}

bool Launchers::follow_first(Control& control, EndedRanks& ended,
                             const std::function<void()>& pause) {
  Peer& first = *peers_.front();
  Writer writer = message(Word::ended);
  writer.put(ended.code);
  writer.put(ended.from_outside);
  writer.put(ended.interrupted);
  writer.put(ended.step);
  put_held(writer, ended.held);
  first.stream.send(writer.text());
  bool asked = ended.interrupted;
  while (!first.answer && !first.lost) {
    serve(control);
    pause();
    if (!asked && control.interrupts.load() != 0) {
      asked = true;
      first.stream.send(message(Word::stop).text());
    }
  }
  if (first.lost) {
    return may_wait(control, ended) && rejoin(control, ended, pause);
  }
  const std::string text = *std::exchange(first.answer, std::nullopt);
  Reader reader(text);
  require(reader.get<Word>() == Word::decision, "launch: machine 0 says something else");
  const bool started_again = reader.get<bool>();
  ended.code = reader.get<int>();
  ended.kept = reader.get<std::int64_t>();
  return started_again;
}

std::vector<HeldSteps> Launchers::hear_ends(Control& control, EndedRanks& ended,
                                            const std::function<void()>& pause) {
  std::vector<HeldSteps> held(static_cast<std::size_t>(place_.machines));
  held[0] = ended.held;
  for (const auto& peer : peers_) {
    const auto ended_there = [&] {
      if (peer->answer && Reader(*peer->answer).get<Word>() == Word::ready) {
        peer->answer.reset();  // for an attempt that could not begin
      }
      return peer->answer || peer->lost;
    };
    while (!ended_there()) {
      serve(control);
      pause();
    }
    if (!peer->answer) {
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
    held[static_cast<std::size_t>(peer->machine)] = get_held(reader);
  }
  return held;
}

bool Launchers::agree(Control& control, EndedRanks& ended, const std::function<void()>& pause,
                      const std::function<bool(const EndedRanks& all)>& again) {
  serve(control);
  ++attempts_;
  held_ = ended.held;
  if (place_.machine != 0) {
    return follow_first(control, ended, pause);
  }
  std::vector<HeldSteps> held = hear_ends(control, ended, pause);
  Peers newcomers;
  const bool all_there =
      lost_.empty() || (may_wait(control, ended) && replace_lost(control, held, newcomers, pause));
  ended.kept = newest_common(held);
  const bool started_again = all_there && again(ended);
  Writer writer = message(Word::decision);
  writer.put(started_again);
  writer.put(ended.code);
  writer.put(ended.kept);
  send_to_all(writer.text());
  if (started_again && !newcomers.empty()) {
    joined_ = {attempts_, ended.kept};
    welcome(newcomers);
    std::ranges::move(newcomers, std::back_inserter(peers_));
    std::ranges::sort(peers_, {}, [](const auto& peer) { return peer->machine; });
  } else {
    refuse(newcomers, "launch: the run has ended meanwhile", ErrorKind::run);
  }
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
