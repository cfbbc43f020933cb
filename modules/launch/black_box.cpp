// What is left of a run that has failed, for `tessera blackbox`.
module;
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <tessera/json.hpp>
module tessera.launch;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :black_box;
import :external;

namespace tessera::collective {
namespace {

using Json = nlohmann::ordered_json;

/// `groups`: gets the ranks of each group by its name.
Json calls_of(Control& control, const Region& region, int rank, Json& groups) {
  Json calls = Json::array();
  for (const FlightRecord& kept : control.kept_calls(region, rank, RankRecord::kept_calls)) {
    const std::string name = describe_group(*kept.group);
    if (!groups.contains(name)) {
      groups[name] = std::span<const std::int32_t>(kept.group->ranks(), kept.group->size);
    }
    calls.push_back({{"call", kept.call},
                     {"group", name},
                     {"sequence", kept.sequence},
                     {"complete", kept.complete}});
  }
  return calls;
}

}  // namespace

void write_black_box(const std::string& folder, Control& control, const Region& region) {
  if (control.boxed.exchange(1) != 0) {
    return;
  }
  const FirstError error = control.first_error();
  Json all = {
      {"tessera_black_box", 1},
      {"machine", machine_name()},
      {"size", control.size},
      {"error",
       {{"rank", error.rank}, {"step", error.step}, {"where", error.where}, {"text", error.text}}},
      {"groups", Json::object()},
      {"ranks", Json::array()}};
  for (int rank = 0; rank < static_cast<int>(control.size); ++rank) {
    const RankRecord& record = control.ranks()[rank];
    if (record.process.load() != 0) {  // else it is of another machine
      all["ranks"].push_back({{"rank", rank},
                              {"process", record.process.load()},
                              {"ended", record.ended.load() != 0},
                              {"step", record.step.load()},
                              {"where", record.where.load()},
                              {"waiting_for", record.waiting_for.load()},
                              {"calls", calls_of(control, region, rank, all["groups"])}});
    }
  }
  try_side_work(SideWork::output, "log.blackbox", [&] {
    std::filesystem::create_directories(folder);
    const std::string path =
        (std::filesystem::path(folder) / fmt::format("{}-{}.json", machine_name(), ::getpid()))
            .string();
    if (const std::string reason = write_file(path, json_text(all, 1) + "\n"); !reason.empty()) {
      fail({.thing = path, .wrong = fmt::format("it cannot be written ({})", reason)});
    }
    log(LogLevel::warning, fmt::format("what each rank did last is in {}; `tessera blackbox {}` "
                                       "says who waited for whom",
                                       path, folder));
  });
}

}  // namespace tessera::collective
