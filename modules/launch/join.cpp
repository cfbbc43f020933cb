module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.plugin;
import tessera.ranks;
import tessera.machines;
import tessera.communication;
import :external;
import :start;
import :rendezvous;
import :runner;
import :messages;

namespace tessera::collective {

namespace {

/// The ranks of this machine, which meet as those of a launch on one machine do.
ExternalRank on_this_machine(const ExternalRank& self, const Machines& machines) {
  const int machine = machines.of_rank[static_cast<std::size_t>(self.rank)];
  const std::vector<int>& mates = machines.ranks[static_cast<std::size_t>(machine)];
  const auto own = std::ranges::find(mates, self.rank) - mates.begin();
  return {static_cast<int>(own),
          static_cast<int>(mates.size()),
          fmt::format("{}.{}", self.job, machines.names[static_cast<std::size_t>(machine)]),
          false,
          mates,
          self.size};
}

/// Joins the ranks of this machine, and runs. The bridge, where there is one, has met the others.
int join_machine(const ExternalRank& self, Bridge* bridge, double timeout,
                 const LaunchOptions& options, const RankFunction& run) {
  const int rank = self.number(self.rank);
  // Rank 0 waits for all, rank 1 for rank 0: the others have nothing to add, unless those are late.
  const double report_after = self.rank <= 1
                                  ? std::min(options.report_seconds, Patience::reported_after)
                                  : options.report_seconds;
  auto rendezvous = std::make_unique<Rendezvous>(self, timeout, report_after);
  if (self.rank != 0) {
    note_meeting();  // what goes wrong from here on, rank 0 says or notices
  }
  const auto region = rendezvous->memory(arena_bytes(options));
  note_meeting();
  auto* control = reinterpret_cast<Control*>(region->base());
  if (bridge != nullptr) {
    bridge->attach(region, true);
  }
  int code = 0;
  bool fits = false;
  try {
    check_room(*region, options);
    fits = true;
    rendezvous->wait_for_all();
  } catch (const Error& error) {
    // The others have the memory too: one of them prints it.
    control->publish_error(rank, error.what(), error.kind());
    const int missing = self.size - 1 - rendezvous->joined();
    const bool refused = rendezvous->refused();
    rendezvous.reset();
    const int coming = fits ? (refused ? missing - 1 : 0) : missing;
    if (self.rank == 0 && coming > 0) {
      turn_away(self, coming, error.what(), error.kind());
    }
    return finish(*control, *region, options, exit_code_of(error.kind()), bridge);
  }
  rendezvous.reset();
  {
    const ServedSignals served(*control, true);
    code = run_rank(region, rank, options, Transport::shm, run, bridge);
  }
  // Nobody watches the ranks: the first that comes here with an error prints it.
  return finish(*control, *region, options, code, bridge);
}

}  // namespace

std::string transport_for(const std::string& asked, bool has_address) {
  if (asked != "auto") {
    return asked;
  }
  std::vector<std::string> names = plugin::host().names(MessageTransport::plugin_kind.name);
  for (const std::string_view meets : meeting_transports) {
    const auto at = std::ranges::find(names, meets);
    if (at != names.end() && has_address) {
      return *at;
    }
    if (at != names.end()) {  // it needs an address, and what has one is meant for it
      names.erase(at);
    }
  }
  if (names.size() != 1) {
    fail_input(
        {.thing = "launch",
         .wrong = names.empty()
                      ? "the ranks are on several machines, and nothing says how they meet"
                      : fmt::format("there are several transports: {}", fmt::join(names, ", ")),
         .advice = names.empty()
                       ? "set TESSERA_MEET to HOST:PORT on all, with the host of rank 0 and a "
                         "free port of it, install Tessera where MPI is found, or start all "
                         "ranks on one machine"
                       : "name one in `mesh.transport`"});
  }
  return names.front();
}

void check_transport(std::string_view name) {
  std::vector<std::string> known = {"auto", "shm"};
  if (std::ranges::find(known, name) != known.end()) {
    return;
  }
  const std::vector<std::string> provided =
      plugin::host().names(MessageTransport::plugin_kind.name);
  known.insert(known.end(), provided.begin(), provided.end());
  if (std::ranges::find(known, name) == known.end()) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("there is no transport '{}'", shown(name)),
                .expected = fmt::format("one of {}", join_words(known)),
                .advice = "'tessera plugin list' shows the plugins"});
  }
}

int join_launch(const LaunchOptions& options, const RankFunction& run) {
  use_interface(options.interface);
  const ExternalRank self = external_rank(options.ranks, options.transport);
  const double timeout = options.timeout_seconds > 0 ? options.timeout_seconds : wait_limit();
  const HeldSignals held;  // before the transport starts threads
  const SignalThread thread;
  if (!self.several) {
    return join_machine(self, nullptr, timeout, options, run);
  }
  const bool has_address = environment_variable("TESSERA_MEET").has_value();
  Bridge bridge(
      plugin::host().find<MessageTransport>(transport_for(options.transport, has_address)),
      self.rank, self.size);
  const Machines& machines = bridge.meet(protocol_number(), machine_name(), timeout,
                                         speaks_for_machine() ? Patience::reported_after : timeout);
  const int code = join_machine(on_this_machine(self, machines), &bridge, timeout, options, run);
  bridge.finish();
  return code;
}

}  // namespace tessera::collective
