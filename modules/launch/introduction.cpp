module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "launcher_text.hpp"
module tessera.launch;

import tessera.base;
import tessera.calls;
import tessera.machines;
import :introduction;
import :messages;
import :start;

namespace tessera::collective {
namespace {

constexpr std::string_view magic = "tessera launcher 2";

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
  for (auto left = reader.count<std::uint64_t>(2 * sizeof(std::uint32_t)); left > 0; --left) {
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
      const auto text = [&](bool is, std::string line) {
        line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
        return is ? terminal_line(line) : std::string("nothing more");
      };
      return {text(more, one), text(others, other)};
    }
  }
}

/// Why texts that must be the same are not; empty: they are. `who`: whose `theirs` are.
std::string difference(const std::string& who, const Texts& theirs, const Texts& own) {
  for (std::size_t i = 0; i < std::max(theirs.size(), own.size()); ++i) {
    if (i >= theirs.size() || i >= own.size() || theirs[i].first != own[i].first) {
      return fmt::format("{} runs another program than machine 0; start the same on all", who);
    }
    if (theirs[i].second != own[i].second) {
      const auto [there, here] = first_difference(theirs[i].second, own[i].second);
      return fmt::format(
          "{} has another {} than machine 0 (there: {}; here: {}); start all with "
          "the same command and the same files",
          who, own[i].first, there, here);
    }
  }
  return "";
}

std::string own_job() { return environment_variable("TESSERA_JOB").value_or(""); }

std::string other_version(const std::string& who) {
  return fmt::format("{} has another version of Tessera than machine 0; install the same on all",
                     who);
}

std::string other_job(const std::string& who, const std::string& job) {
  return fmt::format("{} is of another job than machine 0 (TESSERA_JOB is '{}' and '{}')", who, job,
                     own_job());
}

}  // namespace

ErrorKind get_error_kind(Reader& reader) {
  const auto kind = reader.get<ErrorKind>();
  require(kind == ErrorKind::input || kind == ErrorKind::run || kind == ErrorKind::interrupted,
          "launch: a message has an error of no kind");
  return kind;
}

std::string get_name(Reader& reader) { return terminal_line(reader.text(), 200); }

std::string get_error_text(Reader& reader) {
  constexpr std::size_t longest = 1 << 16;
  return shown(terminal_text(reader.text()), longest);
}

FirstError get_first_error(Reader& reader, int ranks) {
  FirstError error;
  error.rank = reader.get<std::int32_t>();
  require(error.rank >= -1 && error.rank < ranks, "launch: a message names a rank that is none");
  error.kind = get_error_kind(reader);
  error.step = reader.get<std::int64_t>();
  error.where = get_name(reader);
  error.text = get_error_text(reader);
  return error;
}

std::string spare_text() {
  Writer writer = message(Word::spare);
  writer.put(magic);
  writer.put(protocol_number());
  writer.put(std::string_view(own_job()));
  writer.put(std::string_view(machine_name()));
  return std::string(writer.text());
}

std::optional<std::string> objection_to_spare(std::string_view text, const std::string& host) {
  try {
    Reader reader(text);
    if (reader.get<Word>() != Word::spare || reader.text() != magic) {
      return std::nullopt;
    }
    if (reader.get<std::uint64_t>() != protocol_number()) {
      return other_version("the spare machine " + host);
    }
    const std::string job = reader.text();
    return job == own_job()
               ? ""
               : other_job("the spare machine " + get_name(reader), terminal_line(job));
  } catch (const Error&) {
    return std::nullopt;
  }
}

Writer message(Word word) {
  Writer writer;
  writer.put(word);
  return writer;
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

Introduction::Introduction(const LaunchOptions& options, int seen, HeldSteps has)
    : protocol(protocol_number()),
      job(own_job()),
      place(options.place.value()),
      ranks(options.ranks),
      here(place.ranks_of(options.ranks)),
      name(fmt::format("{} ({})", place.machine, machine_name())),
      attempts(seen),
      held(std::move(has)),
      agreed(options.agreed),
      agreed_at_start(options.agreed_at_start) {}

std::string Introduction::text() const {
  Writer writer = message(Word::introduction);
  writer.put(magic);
  writer.put(protocol);
  writer.put(std::string_view(job));
  writer.put(place.machine);
  writer.put(place.machines);
  writer.put(ranks);
  writer.put(here);
  writer.put(std::string_view(name));
  writer.put(attempts);
  put_held(writer, held);
  put_texts(writer, agreed);
  put_texts(writer, agreed_at_start);
  return std::string(writer.text());
}

std::optional<Introduction> Introduction::read(std::string_view text, const std::string& host) {
  Introduction theirs;
  try {
    Reader reader(text);
    if (reader.get<Word>() != Word::introduction || reader.text() != magic) {
      return std::nullopt;
    }
    theirs.protocol = reader.get<std::uint64_t>();
    theirs.name = host;
    if (theirs.protocol == protocol_number()) {
      theirs.job = reader.text();
      theirs.place.machine = reader.get<int>();
      theirs.place.machines = reader.get<int>();
      theirs.ranks = reader.get<int>();
      theirs.here = reader.get<int>();
      theirs.name = get_name(reader);
      theirs.attempts = reader.get<int>();
      theirs.held = get_held(reader);
      theirs.agreed = get_texts(reader);
      theirs.agreed_at_start = get_texts(reader);
      constexpr int most_attempts = 1 << 30;
      require(theirs.here >= 1 && theirs.here <= theirs.ranks && theirs.attempts >= 0 &&
                  theirs.attempts <= most_attempts,
              "launch: a launcher says what cannot be");
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return theirs;
}

std::string Introduction::objection(const Introduction& theirs, bool begun) const {
  const std::string who = fmt::format("machine {}", theirs.name);
  if (theirs.protocol != protocol) {
    return other_version(who);
  }
  if (theirs.job != job) {
    return other_job(who, terminal_line(theirs.job));
  }
  if (theirs.place.machines != place.machines) {
    return fmt::format("{} was started with --machines {}, and machine 0 with --machines {}", who,
                       theirs.place.machines, place.machines);
  }
  if (theirs.ranks != ranks) {
    return fmt::format(
        "the run of {} has {} ranks, and that of machine 0 has {}; start all with "
        "the same config",
        who, theirs.ranks, ranks);
  }
  const std::string why = difference(who, theirs.agreed, agreed);
  return begun || !why.empty() ? why : difference(who, theirs.agreed_at_start, agreed_at_start);
}

extern "C++" {

std::string launcher_message_text(std::string_view message) {
  const auto refuse = [] {
    fail_input({.thing = "launch", .wrong = "the message is none that a launcher begins with"});
  };
  const std::string host = "a host";
  if (const auto theirs = Introduction::read(message, host)) {
    LauncherPlace place;
    place.machines = 2;
    const Introduction own({.ranks = 2, .place = place}, 0, {});
    const std::string again = theirs->text();
    const auto second = Introduction::read(again, host);
    require(!second || second->text() == again,
            "launch: an introduction that is written is read as another one");
    return fmt::format("machine {}, {} of {} ranks, newest step {}: {}", theirs->name, theirs->here,
                       theirs->ranks, newest_common({theirs->held}), own.objection(*theirs, false));
  }
  if (const auto objection = objection_to_spare(message, host)) {
    return "spare: " + *objection;
  }
  std::string text;
  try {
    Reader reader(message);
    if (reader.get<Word>() != Word::error) {
      refuse();
    }
    const bool about_calls = reader.get<std::uint8_t>() != 0;
    constexpr int ranks = 1024;
    const FirstError error = get_first_error(reader, ranks);
    text = fmt::format("rank {} at step {}, {}{}: {}", error.rank, error.step, error.where,
                       about_calls ? ", about calls" : "", error.text);
  } catch (const Error&) {
    refuse();
  }
  return text;
}

std::string launcher_message_begin(bool of_spare) {
  Writer writer = message(of_spare ? Word::spare : Word::introduction);
  writer.put(magic);
  writer.put(protocol_number());
  return std::string(writer.text());
}

}  // extern "C++"

}  // namespace tessera::collective
