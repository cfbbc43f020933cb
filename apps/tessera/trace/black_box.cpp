module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tessera/json_reading.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.trace;

import tessera.base;
import tessera.app.base;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct FlightRecord {
  std::string call;
  std::string group;
  std::uint64_t sequence = 0;
  bool complete = false;
};

struct RankBox {
  std::int64_t step = -1;
  std::string where;
  bool ended = false;               // by itself; else it was killed
  int waiting_for = -1;             // the rank for which it waited last; -1: for none
  std::vector<FlightRecord> calls;  // the oldest first

  /// Its first call that it has not completed; null: it has completed all.
  const FlightRecord* first_open() const {
    const auto open =
        std::ranges::find_if(calls, [](const FlightRecord& one) { return !one.complete; });
    return open == calls.end() ? nullptr : &*open;
  }
  /// "step 7, training".
  std::string doing() const {
    return step < 0        ? where
           : where.empty() ? fmt::format("step {}", step)
                           : fmt::format("step {}, {}", step, where);
  }
  /// The number of its last call in the group that is kept; 0: none is.
  std::uint64_t last_in(const std::string& group) const {
    const auto last =
        std::ranges::find_if(calls.rbegin(), calls.rend(),
                             [&](const FlightRecord& call) { return call.group == group; });
    return last == calls.rend() ? 0 : last->sequence;
  }
};

struct FailedRun {
  std::size_t size = 0;
  std::set<std::string> errors;
  std::map<int, RankBox> ranks;
  std::map<std::string, std::vector<int>> groups;
};

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  fail_input({.thing = path,
              .wrong = problem,
              .advice = "name files that a run with log.blackbox has written"});
}

RankBox box_of(const Json& rank) {
  RankBox box{.step = json_member<std::int64_t>(rank, "step"),
              .where = json_member<std::string>(rank, "where"),
              .ended = json_member<bool>(rank, "ended"),
              .waiting_for = json_member<int>(rank, "waiting_for"),
              .calls = {}};
  for (const Json& call : json_member(rank, "calls")) {
    box.calls.push_back({.call = json_member<std::string>(call, "call"),
                         .group = json_member<std::string>(call, "group"),
                         .sequence = json_member<std::uint64_t>(call, "sequence"),
                         .complete = json_member<bool>(call, "complete")});
  }
  return box;
}

/// Throws JsonProblem.
void add_run(FailedRun& run, const std::string& path, const Json& all) {
  if (!all.contains("tessera_black_box")) {
    refuse(path, "it is not what ranks did last");
  }
  const auto size = json_member<std::size_t>(all, "size");
  if (run.size != 0 && run.size != size) {
    refuse(path, fmt::format("it is of another run, with {} ranks and not {}", size, run.size));
  }
  run.size = size;
  run.errors.insert(json_member<std::string>(json_member(all, "error"), "text"));
  for (const auto& [name, ranks] : json_member(all, "groups").items()) {
    std::vector<int> members;
    for (const Json& rank : ranks) {
      members.push_back(json_value<int>(rank, name));
    }
    run.groups[name] = std::move(members);
  }
  for (const Json& of : json_member(all, "ranks")) {
    RankBox box = box_of(of);
    for (const FlightRecord& call : box.calls) {
      if (!run.groups.contains(call.group)) {
        refuse(path, fmt::format("it does not say who is in group {}", shown(call.group)));
      }
    }
    const int rank = json_member<int>(of, "rank");
    if (!run.ranks.emplace(rank, std::move(box)).second) {
      refuse(path, fmt::format("rank {} is in another file too", rank));
    }
  }
}

void add_file(FailedRun& run, const std::string& path) {
  const ParsedJson read = read_json_object(path);
  if (!read.problem.empty()) {
    refuse(path, read.problem);
  }
  reading_json(
      path, [&] { add_run(run, path, read.value); },
      "name files that a run with log.blackbox has written");
}

FailedRun read_all(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".json") {
        files.push_back(entry.path().string());
      }
    }
  }
  if (files.empty()) {
    refuse(paths.front(), "the folder has no file");
  }
  std::ranges::sort(files);
  FailedRun run;
  for (const std::string& file : files) {
    add_file(run, file);
  }
  return run;
}

/// A call of a group, by which ranks' records of it are found.
using CallKey = std::pair<std::string, std::uint64_t>;
CallKey key_of(const FlightRecord& call) { return {call.group, call.sequence}; }

/// The members of a call's group that have not made it, as far as their records are here.
std::vector<int> missing_in(const FailedRun& run, const FlightRecord& call) {
  std::vector<int> missing;
  for (const int member : run.groups.at(call.group)) {
    const auto box = run.ranks.find(member);
    if (box != run.ranks.end() && box->second.last_in(call.group) < call.sequence) {
      missing.push_back(member);
    }
  }
  return missing;
}

/// A call that a rank has not completed, or in which it waited for one that has not.
struct OpenCall {
  const FlightRecord* call = nullptr;  // one of its records
  std::vector<int> missing;            // see missing_in
  std::vector<int> waiting = {};       // the ranks that waited in it
  std::set<int> waited_for = {};       // those for which they waited
};
using OpenCalls = std::map<CallKey, OpenCall>;

bool has_open(const RankBox& box, const CallKey& key) {
  return std::ranges::any_of(
      box.calls, [&](const FlightRecord& call) { return !call.complete && key_of(call) == key; });
}

/// The call in which a rank waited: the first one that others had not made, else the first one that
/// it has not completed, else, as it waited until its data could be written again, the last one
/// that the other rank has not completed. Null: it did not wait.
const FlightRecord* waited_in(const FailedRun& run, const OpenCalls& all, const RankBox& box) {
  for (const FlightRecord& call : box.calls) {
    if (!call.complete && !all.at(key_of(call)).missing.empty()) {
      return &call;
    }
  }
  if (box.waiting_for < 0 || !box.ended) {  // a wait of one that was stopped may have been over
    return nullptr;
  }
  const auto other = run.ranks.find(box.waiting_for);
  if (box.first_open() != nullptr || other == run.ranks.end()) {
    return box.first_open();
  }
  const auto last = std::ranges::find_if(
      box.calls.rbegin(), box.calls.rend(),
      [&](const FlightRecord& call) { return has_open(other->second, key_of(call)); });
  return last == box.calls.rend() ? nullptr : &*last;
}

OpenCalls open_calls(const FailedRun& run) {
  OpenCalls all;
  for (const auto& [rank, box] : run.ranks) {
    for (const FlightRecord& call : box.calls) {
      if (!call.complete && !all.contains(key_of(call))) {
        all[key_of(call)] = {.call = &call, .missing = missing_in(run, call)};
      }
    }
  }
  for (const auto& [rank, box] : run.ranks) {
    if (const FlightRecord* const open = waited_in(run, all, box)) {
      OpenCall& one = all.at(key_of(*open));
      one.waiting.push_back(rank);
      if (box.waiting_for >= 0) {
        one.waited_for.insert(box.waiting_for);
      }
    }
  }
  return all;
}

/// What a rank did for which others waited: "which had made no call".
std::string late_in_words(const FailedRun& run, const OpenCalls& all, const RankBox& box) {
  if (box.calls.empty()) {
    return "which had made no call";
  }
  if (const FlightRecord* const own = waited_in(run, all, box)) {
    return fmt::format("which waited in call {} of group {} itself", own->sequence, own->group);
  }
  const FlightRecord* const open = box.first_open();
  const FlightRecord& named = open != nullptr ? *open : box.calls.back();
  return fmt::format("{} {} of group {}: {}",
                     open != nullptr ? "which had not completed call" : "whose last call was",
                     named.sequence, named.group, named.call);
}

/// Who waited for whom: a sentence for each call that was open.
std::string waits_in_words(const FailedRun& run) {
  std::string text;
  const OpenCalls all = open_calls(run);
  for (const auto& [key, one] : all) {
    if (one.waiting.empty()) {
      continue;
    }
    const std::vector<int> late =
        one.missing.empty() ? std::vector<int>(one.waited_for.begin(), one.waited_for.end())
                            : one.missing;
    text += fmt::format("{} waited in call {} of group {}: {}, for {}",
                        numbers_text("rank", one.waiting), one.call->sequence, one.call->group,
                        one.call->call, numbers_text("rank", late));
    if (const auto box = run.ranks.find(late.front()); late.size() == 1 && box != run.ranks.end()) {
      const std::string doing = box->second.doing();
      text += fmt::format("{}, {}", doing.empty() ? "" : fmt::format(" ({})", doing),
                          late_in_words(run, all, box->second));
    }
    text += ".\n";
  }
  return text.empty() ? "No rank waited for another one.\n" : text;
}

std::string kind_of(const std::string& call) { return call.substr(0, call.find('(')); }

/// The first call of each group that its ranks have made as different ones.
std::string divergence_in_words(const FailedRun& run) {
  std::map<std::string, std::map<std::uint64_t, std::map<std::string, std::vector<int>>>> calls;
  for (const auto& [rank, box] : run.ranks) {
    for (const FlightRecord& call : box.calls) {
      calls[call.group][call.sequence][kind_of(call.call)].push_back(rank);
    }
  }
  std::string text;
  for (const auto& [group, by_number] : calls) {
    const auto differs =
        std::ranges::find_if(by_number, [](const auto& of) { return of.second.size() > 1; });
    if (differs == by_number.end()) {
      continue;
    }
    text += fmt::format("The ranks differ in call {} of group {}:", differs->first, group);
    for (const auto& [kind, ranks] : differs->second) {
      text += fmt::format(" {} by {};", kind, numbers_text("rank", ranks));
    }
    text.back() = '.';
    text += '\n';
  }
  return text;
}

}  // namespace

std::string black_box_text(const std::vector<std::string>& paths) {
  const FailedRun run = read_all(paths);
  std::string text;
  for (const std::string& error : run.errors) {
    text += error.empty() ? "" : error + "\n";
  }
  text += divergence_in_words(run) + waits_in_words(run);
  if (run.ranks.size() < run.size) {
    text +=
        fmt::format("{} of {} ranks are in these files; name those of the other machines too.\n",
                    run.ranks.size(), run.size);
  }
  TableRows rows = {{"rank", "step", "in", "last call", "of group", ""}};
  for (const auto& [rank, box] : run.ranks) {
    const bool any = !box.calls.empty();
    rows.push_back(
        {std::to_string(rank), box.step < 0 ? "-" : std::to_string(box.step), box.where,
         any ? box.calls.back().call : "none",
         any ? fmt::format("{}, {}", box.calls.back().group, box.calls.back().sequence) : "",
         any && !box.calls.back().complete ? "not complete" : ""});
  }
  return text + "\n" + format_table(rows);
}

}  // namespace tessera::app
