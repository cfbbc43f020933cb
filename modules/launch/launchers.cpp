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
import :arrivals;
import :introduction;
import :launchers;
import :start;

namespace tessera::collective {
namespace {

constexpr double between_beats = 1;     // seconds
constexpr double shortest_silence = 5;  // seconds; a launcher may wait for a processor

/// The key of an attempt, of which the launchers tell each other a number that everybody may know.
RunKey key_of_attempt(const RunKey& key, const std::string& number) {
  return key.derived("attempt " + number);
}

/// What another process says of a port.
int get_port(Reader& reader) {
  const int port = reader.get<int>();
  require(port >= 0 && port <= 65535, "launch: a message has a port that is none");
  return port;
}

}  // namespace

void RankMeeting::enter(int rank) {
  setenv("TESSERA_MEET", to_string(at).c_str(), 1);
  hold_run_key(key.value());
  unsetenv("TESSERA_MEET_LISTENERS");
  if (rank == 0) {
    std::vector<int> descriptors;
    for (Socket& listener : listeners) {
      descriptors.push_back(listener.release());
    }
    setenv("TESSERA_MEET_LISTENERS", fmt::format("{}", fmt::join(descriptors, " ")).c_str(), 1);
  }
  listeners.clear();
}

Launchers::Launchers(const LaunchOptions& options)
    : options_(options),
      place_(options.place.value()),
      meet_(parse_endpoint("--meet", place_.meet)),
      key_(run_key({.host = meet_.host, .first = place_.machine == 0, .tells = true})),
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

void Launchers::welcome(const LauncherPeers& peers) {
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

void Launchers::set_ranks(const std::vector<int>& ranks) {
  ranks_ = ranks;
  first_ = std::accumulate(ranks.begin(), ranks.begin() + place_.machine, 0);
}

void Launchers::listen_for_all() {
  arrivals_.emplace(Introduction(options_, 0, {}), meet_, key_);
  Patience patience;
  for (std::vector<int> missing; !(missing = arrivals_->missing({})).empty();) {
    arrivals_->hear({});
    if (!patience.look([&] {
          return fmt::format("launch: {} did not come to {} yet", arrivals_->in_words(missing),
                             place_.meet);
        })) {
      const std::string text = fmt::format(
          "launch: {} did not come to {} within {:.4g} s; start the same command there, with its "
          "number in --machine",
          arrivals_->in_words(missing), place_.meet, patience.limit());
      arrivals_->refuse(text, ErrorKind::run);
      fail(text);
    }
  }
  std::vector<int> ranks(static_cast<std::size_t>(place_.machines), here_);
  std::vector<HeldSteps> held(ranks.size());
  for (const LauncherPeer* peer : arrivals_->introduced()) {
    const auto machine = static_cast<std::size_t>(peer->machine);
    ranks[machine] = peer->ranks;
    names_[machine] = peer->name;
    held[machine] = peer->held;
    attempts_ = std::max(attempts_, peer->attempts);
  }
  if (const int sum = std::accumulate(ranks.begin(), ranks.end(), 0); sum != options_.ranks) {
    const std::string text = fmt::format(
        "launch: the machines start {} = {}, and the run has {}; say how many each starts "
        "(--here)",
        fmt::join(ranks, " + "), count_text(sum, "rank"), options_.ranks);
    arrivals_->refuse(text, ErrorKind::input);
    fail_input(text);
  }
  set_ranks(ranks);
  if (attempts_ > 0) {  // the others wait for a machine 0 in the place of one that is lost
    joined_ = {attempts_, newest_common(held)};
  }
  peers_ = arrivals_->take();
  welcome(peers_);
}

bool Launchers::join_first(double limit, const std::function<bool()>& ended) {
  Patience patience(limit);
  ProofFailure failure;
  const std::string& why = failure.why;
  std::optional<ProvenLink> link;
  while (!(link = connect_proven(meet_, key_, launchers_meet, 2, failure))) {
    refuse_other_key(meet_, failure);
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
  own_address_ = link->socket.own_end().host;
  peers_.push_back(std::make_unique<LauncherPeer>(std::move(*link)));
  LauncherPeer& first = *peers_.front();
  first.machine = 0;
  first.name = fmt::format("0 ({})", meet_.host);
  first.stream.send(Introduction(options_, attempts_, held_).text());
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
  take_welcome(*answer);
  return true;
}

void Launchers::take_welcome(const std::string& answer) {
  Reader reader(answer);
  const Word word = reader.get<Word>();
  if (word == Word::refused) {
    const ErrorKind kind = get_error_kind(reader);
    throw Error(get_error_text(reader), kind);
  }
  require(word == Word::welcome, "launch: machine 0 answers something else");
  const std::vector<int> ranks = get_all<int>(reader);
  require(ranks.size() == names_.size() &&
              std::ranges::all_of(ranks,
                                  [&](int here) { return here >= 1 && here <= options_.ranks; }) &&
              std::accumulate(ranks.begin(), ranks.end(), 0LL) == options_.ranks,
          "launch: machine 0 says that the machines have other ranks");
  set_ranks(ranks);
  const std::string own = names_[static_cast<std::size_t>(place_.machine)];
  for (std::string& name : names_) {
    name = get_name(reader);
  }
  names_[static_cast<std::size_t>(place_.machine)] = own;
  peers_.front()->name = names_.front();
  joined_.reset();
  if (const bool joins = reader.get<std::uint8_t>() != 0; joins) {
    joined_ = reader.get<JoinedAttempt>();
    attempts_ = joined_->number;
  }
}

void Launchers::send_to_all(std::string_view text, const LauncherPeer* except) {
  for (const auto& peer : peers_) {
    if (peer.get() != except && !peer->lost) {
      peer->stream.send(text);
      peer->stream.progress();
    }
  }
}

void Launchers::lose(LauncherPeer& peer, const std::string& why, Control* control) {
  peer.lost = true;
  lost_ = fmt::format("machine {} is lost: {}", peer.name, why);
  if (control != nullptr) {
    control->publish_error(-1, lost_, ErrorKind::run, true);
  }
}

void Launchers::take(LauncherPeer& from, const std::string& text, Control* control) {
  Reader reader(text);
  switch (reader.get<Word>()) {
    case Word::beat:
      break;
    case Word::stop:
      stopped_ = true;
      break;
    case Word::error: {
      const bool about_calls = reader.get<std::uint8_t>() != 0;
      const FirstError error = get_first_error(reader, options_.ranks);
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
  if (arrivals_) {
    arrivals_->admit();
  }
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
      try {
        take(*peer, *text, control);
      } catch (const Error& error) {
        lose(*peer, error.what(), control);
        break;
      }
    }
    if (peer->lost) {
      continue;
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
  const auto wait_for = [&](LauncherPeer& peer) {
    while (idle() && !peer.answer) {
      poll(nullptr, 0, 5);
    }
    return failure().empty() ? std::exchange(peer.answer, std::nullopt) : std::nullopt;
  };
  RankMeeting meeting;
  if (place_.machine != 0) {
    LauncherPeer& first = *peers_.front();
    Writer ready = message(Word::ready);
    ready.put(home);
    ready.put(std::string_view(announced_address()));
    first.stream.send(ready.text());
    const std::optional<std::string> text = wait_for(first);
    if (!text) {
      return std::nullopt;
    }
    Reader reader(*text);
    require(reader.get<Word>() == Word::begin, "launch: machine 0 does not begin");
    meeting.key = key_of_attempt(key_, reader.text());
    const int port = get_port(reader);
    for (int machine = 0; machine < place_.machines; ++machine) {
      // Whoever is on the machine of machine 0 is where that is.
      std::string at = get_name(reader);
      at = at.empty() ? first.stream.host() : at;
      meeting.homes.push_back({std::move(at), get_port(reader)});
    }
    meeting.at = {meeting.homes.front().host, port};
    return meeting;
  }
  const std::string announced = announced_address();
  meeting.homes.push_back({announced, home});
  for (const auto& peer : peers_) {
    const std::optional<std::string> text = wait_for(*peer);
    if (!text) {
      return std::nullopt;
    }
    Reader reader(*text);
    require(reader.get<Word>() == Word::ready, "launch: a machine is not ready");
    const int port = get_port(reader);
    const std::string theirs = get_name(reader);
    const bool here = theirs.empty() && is_loopback({peer->stream.host(), 0});
    meeting.homes.push_back({here ? "" : theirs.empty() ? peer->stream.host() : theirs, port});
  }
  meeting.listeners = listen_at(addresses(), 0);
  meeting.at = {announced.empty() ? meet_.host : announced,
                meeting.listeners.front().own_end().port};
  const std::string number = RunKey::random().text();
  meeting.key = key_of_attempt(key_, number);
  Writer writer = message(Word::begin);
  writer.put(std::string_view(number));
  writer.put(meeting.at.port);
  for (Endpoint& at : meeting.homes) {
    writer.put(std::string_view(at.host));
    writer.put(at.port);
    at.host = at.host.empty() ? meeting.at.host : at.host;
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
      writer.put(static_cast<std::uint8_t>(control.failed_in_calls.load() != 0));
      writer.put(error.rank);
      writer.put(error.kind);
      writer.put(error.step);
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

bool Launchers::replace_lost(Control& control, std::vector<HeldSteps>& held,
                             const std::function<void()>& pause) {
  Stopwatch watch;
  std::vector<int> said;
  while (true) {
    std::erase_if(peers_, [](const auto& peer) { return peer->lost; });
    arrivals_->hear(peers_);
    const std::vector<int> still = arrivals_->missing(peers_);
    if (still.empty()) {
      break;
    }
    arrivals_->send_spares(peers_);
    if (still != said) {
      log(LogLevel::warning,
          fmt::format("{} {} lost; the run waits {:.4g} s for another one in its place: start the "
                      "same command, with its number in --machine",
                      arrivals_->in_words(still), still.size() == 1 ? "is" : "are",
                      options_.replace_seconds));
      said = still;
    }
    if (stopped_ || control.interrupts.load() != 0 || watch.waited() > options_.replace_seconds) {
      const std::string text = fmt::format(
          "nobody has taken the place of {} (train.heal_wait); the same commands on all machines "
          "continue the last checkpoint",
          arrivals_->in_words(still));
      log(LogLevel::warning, text);
      arrivals_->refuse("launch: " + text, ErrorKind::run);
      return false;
    }
    move(&control);
    pause();
  }
  for (const LauncherPeer* peer : arrivals_->introduced()) {
    const auto machine = static_cast<std::size_t>(peer->machine);
    held[machine] = peer->held;
    names_[machine] = peer->name;
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
  LauncherPeer& first = *peers_.front();
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
  const bool started_again = reader.get<std::uint8_t>() != 0;
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
    ended.from_outside |= reader.get<std::uint8_t>() != 0;
    ended.interrupted |= reader.get<std::uint8_t>() != 0;
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
  arrivals_->replace_only(ranks_);
  const bool all_there =
      lost_.empty() || (may_wait(control, ended) && replace_lost(control, held, pause));
  ended.kept = newest_common(held);
  const bool started_again = all_there && again(ended);
  Writer writer = message(Word::decision);
  writer.put(started_again);
  writer.put(ended.code);
  writer.put(ended.kept);
  send_to_all(writer.text());
  if (started_again) {
    joined_ = {attempts_, ended.kept};
    LauncherPeers newcomers = arrivals_->take();
    welcome(newcomers);
    std::ranges::move(newcomers, std::back_inserter(peers_));
    std::ranges::sort(peers_, {}, [](const auto& peer) { return peer->machine; });
  } else {
    arrivals_->dismiss();
  }
  Stopwatch watch;
  while (std::ranges::any_of(peers_, [](const auto& p) { return !p->stream.flushed(); }) &&
         watch.waited() < 2) {
    move(&control);
  }
  return started_again;
}

void Launchers::leave() {
  arrivals_.reset();
  peers_.clear();
}

}  // namespace tessera::collective
