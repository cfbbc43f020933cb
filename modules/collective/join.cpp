module;
#include <memory>
#include <string>
module tessera.collective;

import tessera.base;
import :control;
import :external;
import :launch;
import :region;
import :rendezvous;
import :runner;
import :signals;
import :state;
import :world;

namespace tessera::collective {

int join_launch(const LaunchOptions& options, const RankFunction& run) {
  const ExternalRank self = external_rank(options.ranks);
  const double timeout = options.timeout_seconds > 0 ? options.timeout_seconds : default_timeout();
  auto rendezvous = std::make_unique<Rendezvous>(self, timeout, options.report_seconds);
  if (self.rank != 0) {
    note_meeting();  // what goes wrong from here on, rank 0 says or notices
  }
  const auto region = rendezvous->memory(arena_bytes(options));
  note_meeting();
  auto* control = reinterpret_cast<Control*>(region->base());
  int code = 0;
  bool fits = false;
  try {
    check_room(*region, options);
    fits = true;
    rendezvous->wait_for_all();
  } catch (const Error& error) {
    // The others have the memory too: one of them prints it.
    control->publish_error(self.rank, error.what(), error.kind());
    const int missing = self.size - 1 - rendezvous->joined();
    const bool refused = rendezvous->refused();
    rendezvous.reset();
    const int coming = fits ? (refused ? missing - 1 : 0) : missing;
    if (self.rank == 0 && coming > 0) {
      turn_away(self, coming, error.what(), error.kind());
    }
    return finish(*control, *region, options, exit_code_of(error.kind()));
  }
  rendezvous.reset();
  {
    const StopHandlers handlers(*control, true);
    code = run_rank(region, self.rank, options, Transport::shm, run);
  }
  // Nobody watches the ranks: the first that comes here with an error prints it.
  return finish(*control, *region, options, code);
}

}  // namespace tessera::collective
