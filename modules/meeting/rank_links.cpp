module;
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.meeting;

import tessera.base;
import tessera.calls;
import tessera.machines;
import :rank_meeting;
import :rank_links;

namespace tessera::collective {
namespace {

constexpr double report_after = 0.5;                     // seconds
constexpr std::int64_t look_at_strangers = 100'000'000;  // nanoseconds
constexpr std::string_view changed = "what it sent was changed on the way";

/// The first byte of what is sent by a connection.
constexpr char who_it_is = 'h';
constexpr char a_message = 'm';
constexpr char the_end = 'e';

/// To or from one rank.
struct RankLink {
  std::optional<Proof> proof{};           // that is not complete
  std::optional<MessageStream> stream{};  // then
  std::deque<std::string> waiting{};      // for the proof
  int rank = -1;                          // -1: it has not said yet
  bool ended = false;                     // nothing more comes
  bool in_order = false;                  // as the other end has said

  bool open() const { return proof.has_value() || (stream && stream->socket().open()); }
  int descriptor() const {
    return proof ? proof->socket().descriptor() : stream->socket().descriptor();
  }
  short events() const {
    if (proof) {
      return proof->event();
    }
    return static_cast<short>(stream->flushed() ? POLLIN : POLLIN | POLLOUT);
  }
};

struct Loss {
  std::string why;
  Stopwatch since{};
  bool reported = false;
};

}  // namespace

struct RankLinks::Work {
  RunRanks met;
  std::vector<RankLink> out;  // by rank
  std::list<RankLink> in;
  std::map<int, Loss> lost{};
  std::int64_t next_look = 0;

  explicit Work(RunRanks all) : met(std::move(all)), out(met.texts.size()) {}

  void lose(int rank, std::string_view why) { lost.try_emplace(rank, Loss{std::string(why)}); }

  std::string hello(int to) const {
    Writer writer;
    writer.put(who_it_is);
    writer.put(static_cast<std::int32_t>(met.rank));
    writer.put(static_cast<std::int32_t>(to));
    return std::string(writer.text());
  }

  void send(int to, std::string text) {
    RankLink& link = out[static_cast<std::size_t>(to)];
    if (lost.contains(to)) {
      return;
    }
    if (link.stream) {
      link.stream->send(text);
      return;
    }
    link.waiting.push_back(std::move(text));
    if (!link.proof) {
      link.rank = to;
      std::string why;
      Socket socket = begin_connect(met.addresses[static_cast<std::size_t>(to)], why);
      if (socket.open()) {
        link.proof.emplace(std::move(socket), met.key, met.purpose);
      } else {
        lose(to, why);
      }
    }
  }

  /// A connection that this rank makes proves itself; then it says who it is.
  void prove(RankLink& link) {
    const Proof::State state = link.proof->progress();
    if (state == Proof::State::going) {
      return;
    }
    if (state != Proof::State::proven) {
      lose(link.rank, link.proof->why());
      link.proof.reset();
      return;
    }
    link.stream.emplace(link.proof->take());
    link.proof.reset();
    link.stream->send(hello(link.rank));
    for (const std::string& text : link.waiting) {
      link.stream->send(text);
    }
    link.waiting.clear();
  }

  /// One message. False: it is none that a rank sends.
  bool take(RankLink& link, bool is_answer, const std::string& text,
            std::vector<RankMessage>& heard) {
    const char kind = text.empty() ? '\0' : text.front();
    if (link.rank < 0) {
      if (kind != who_it_is) {
        return false;
      }
      Reader reader(std::string_view(text).substr(1));
      const auto from = reader.get<std::int32_t>();
      const auto to = reader.get<std::int32_t>();
      const bool twice =
          std::ranges::any_of(in, [&](const RankLink& other) { return other.rank == from; });
      if (to != met.rank || from < 0 || from == met.rank ||
          from >= static_cast<std::int32_t>(out.size()) || twice) {
        return false;
      }
      link.rank = from;
      return true;
    }
    if (kind == the_end) {
      link.ended = link.in_order = true;
      return true;
    }
    if (kind == a_message && !link.ended) {
      heard.push_back({link.rank, is_answer, text.substr(1)});
      return true;
    }
    return false;
  }

  void move(RankLink& link, bool is_answer, std::vector<RankMessage>& heard) {
    if (link.proof) {
      prove(link);
    }
    if (!link.stream) {
      return;
    }
    const bool alive = link.stream->progress();
    try {
      while (const auto text = link.stream->receive()) {
        require(take(link, is_answer, *text, heard), std::string(changed));
      }
    } catch (const Error&) {  // also of what has too few bytes
      end(link, changed);
      return;
    }
    if (!alive || !link.stream->socket().open()) {
      end(link, link.stream->why());
    }
  }

  void end(RankLink& link, std::string_view why) {
    if (link.rank >= 0 && !link.ended) {
      lose(link.rank, why);
    }
    link.ended = true;
    link.stream.reset();
  }

  void admit() {
    next_look = steady_nanoseconds() + look_at_strangers;
    for (ProvenLink& proven : met.gate.admit()) {
      if (proven.purpose == met.purpose_number) {
        in.emplace_back().stream.emplace(std::move(proven));
      }
    }
  }

  bool has_ended_in_order(int rank) const {
    const auto says_so = [&](const RankLink& link) { return link.rank == rank && link.in_order; };
    return std::ranges::any_of(out, says_so) || std::ranges::any_of(in, says_so);
  }

  template <class Function>
  void each_open(const Function& function) {
    for (RankLink& link : out) {
      if (link.open()) {
        function(link, true);
      }
    }
    for (RankLink& link : in) {
      if (link.open()) {
        function(link, false);
      }
    }
  }
};

RankLinks::RankLinks() = default;
RankLinks::RankLinks(RunRanks met) : work_(std::make_unique<Work>(std::move(met))) {}
RankLinks::RankLinks(RankLinks&&) noexcept = default;
RankLinks& RankLinks::operator=(RankLinks&&) noexcept = default;
RankLinks::~RankLinks() = default;

void RankLinks::send(int to, std::string_view message) {
  work_->send(to, a_message + std::string(message));
}

bool RankLinks::answer(int to, std::string_view message) {
  for (RankLink& link : work_->in) {
    if (link.rank == to && link.open()) {
      link.stream->send(a_message + std::string(message));
      return true;
    }
  }
  return false;
}

std::vector<RankLinks::RankMessage> RankLinks::progress() {
  Work& work = *work_;
  std::vector<pollfd> waiting;
  if (work.met.gate.open()) {
    waiting.push_back({work.met.gate.descriptor(), POLLIN, 0});
  }
  const std::size_t first = waiting.size();
  work.each_open(
      [&](RankLink& link, bool) { waiting.push_back({link.descriptor(), link.events(), 0}); });
  poll(waiting.data(), waiting.size(), 0);
  std::vector<RankMessage> heard;
  auto at = waiting.begin() + static_cast<std::ptrdiff_t>(first);
  work.each_open([&](RankLink& link, bool is_out) {  // none is opened or closed before its turn
    if (at != waiting.end() && (at++)->revents != 0) {
      work.move(link, is_out, heard);
    }
  });
  if (work.met.gate.open() &&
      (waiting.front().revents != 0 ||
       (work.met.gate.unproven() > 0 && steady_nanoseconds() > work.next_look))) {
    work.admit();
  }
  return heard;
}

bool RankLinks::flushed(int to) const {
  const RankLink& link = work_->out[static_cast<std::size_t>(to)];
  return link.waiting.empty() && (!link.stream || link.stream->flushed());
}

void RankLinks::lose(int rank, std::string_view why) { work_->lose(rank, why); }

bool RankLinks::is_lost(int rank) const { return work_->lost.contains(rank); }

std::vector<RankLinks::LostRank> RankLinks::newly_lost() {
  std::vector<LostRank> ranks;
  for (auto& [rank, loss] : work_->lost) {
    if (!loss.reported && loss.since.waited() > report_after) {
      loss.reported = true;
      if (!work_->has_ended_in_order(rank)) {
        ranks.push_back({rank, loss.why});
      }
    }
  }
  return ranks;
}

void RankLinks::end() {
  work_->each_open([&](RankLink& link, bool) {
    if (link.stream) {
      link.stream->send(std::string_view(&the_end, 1));
      link.stream->progress();
    }
  });
}

bool RankLinks::all_have_ended() const {
  bool all = true;
  work_->each_open([&](const RankLink& link, bool) { all &= link.ended || link.rank < 0; });
  return all;
}

void RankLinks::close() { work_.reset(); }

}  // namespace tessera::collective
