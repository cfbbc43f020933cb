module tessera.launch:runner;

import tessera.base;
import tessera.ranks;
import tessera.machines;
import tessera.communication;
import :external;
import :start;

namespace tessera::collective {

/// Address space for the region: as requested, otherwise the size of the machine's memory.
std::size_t arena_bytes(const LaunchOptions& options);

/// Error (input) when the run needs more than the region has.
void check_room(const Region& region, const LaunchOptions& options);

/// Error (input), with the limit that is in the way: the machine or this user cannot have so many
/// processes and threads, or the ranks need more memory than there is.
/// `runs_here`: the only rank is this process.
void check_limits(const LaunchOptions& options, bool runs_here = false);

/// Makes room for so many more open files. Error (input): the limit is too low.
void allow_open_files(int needed);

/// The name of the transport that `asked`, as in LaunchOptions, means. `has_address`: the ranks
/// meet at TESSERA_MEET. Error (input): "auto" means none, or several.
std::string transport_for(const std::string& asked, bool has_address);

/// Number of a rank as its code sees it: current_rank() and the log's lines.
class RankIdentity {
 public:
  explicit RankIdentity(int rank);
  ~RankIdentity();
  RankIdentity(const RankIdentity&) = delete;
  RankIdentity& operator=(const RankIdentity&) = delete;

 private:
  int before_;
};

/// Rank 0 of a launch by another program, which ends before all ranks have joined: says so to the
/// `missing` ranks as they connect, for a few seconds at most. They end quietly.
void turn_away(const ExternalRank& self, int missing, std::string_view text, ErrorKind kind);

/// From here on this process has met other ranks: report_refusal has nobody to tell.
void note_meeting();

/// Runs one rank in the laid out region; its errors are published. Returns the exit code. `bridge`
/// leads to the other machines, where there are some.
int run_rank(const std::shared_ptr<Region>& region, int rank, const LaunchOptions& options,
             Transport transport, const RankFunction& run, Bridge* bridge = nullptr);

/// Prints the first error, if there was one and no other rank has printed it, with the flight
/// recorder where ranks disagreed; on one machine only, where there are several. Returns the exit
/// code; `code` where all went well.
int finish(Control& control, Region& region, const LaunchOptions& options, int code,
           Bridge* bridge = nullptr);

}  // namespace tessera::collective
