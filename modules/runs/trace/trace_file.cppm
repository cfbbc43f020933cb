export module tessera.runs:trace_file;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :recorder;

// The trace file: JSON of the trace event format, which ui.perfetto.dev opens.

export namespace tessera::runs {

/// Statements of a trace file about its run.
struct TraceRun {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::string mesh;  // "mesh(shard=2)"
};

/// Writes what all ranks have recorded into one file, on one clock. Every rank calls it with its
/// own part; rank 0 writes. Returns whether the file was written; a file that cannot be is a
/// warning, and the run's end says it again (SideWork::output).
bool write_trace(collective::World& world, const RankTrace& mine, const TraceRun& run,
                 const std::string& file);

/// Writes the events of all ranks (see trace_events), in their order, as a trace file. Error that
/// begins with `thing`: it cannot be written.
void write_trace_file(const std::string& thing, const std::string& file, const TraceRun& run,
                      const std::vector<std::string>& ranks);

/// The events of a rank as JSON objects that are separated by commas. Times are in microseconds
/// since `zero` (nanoseconds of the steady clock).
std::string trace_events(const RankTrace& trace, int rank, std::int64_t zero);

}  // namespace tessera::runs
