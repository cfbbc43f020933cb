export module tessera.app.plan:search;

import tessera.base;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.hub;
import :hardware;
import :layouts;
import :planner;
import :sums;

// `tessera plan --search`: the layout of a run with the shortest step that fits.

export namespace tessera::app {

/// The run that a search begins with.
struct SearchedRun {
  std::string file;                     // its config
  std::vector<std::string> overrides;   // key=value
  std::int64_t ranks = 1;               // to put it on
  std::vector<std::string> precisions;  // train.precision that may be chosen; empty: the config's
  std::shared_ptr<const runs::LanguageTask> task = {};  // of its config
};

/// What became of a layout with certain choices.
struct LayoutCandidate {
  enum class Outcome : std::uint8_t {
    planned,   // put in time
    refused,   // a check before the launch refuses it
    too_much,  // it needs more memory than a rank has
    too_slow,  // it cannot be among the best
  };
  Outcome outcome = Outcome::planned;
  RunLayout layout = {};
  std::vector<std::string> overrides = {};  // all of it, besides those of SearchedRun
  std::int64_t micro_batch = 0;             // sequences of a rank at once
  std::string savings = {};                 // "checkpointing, head in parts"; empty: none
  std::string precision = {};
  double memory = 0;    // bytes of a rank; of too_much: at least
  double least = 0;     // seconds that the step takes at least (least_seconds)
  StepTimes step = {};  // of planned
  double run = 0;       // seconds of a step of a run (run_best); 0: it was not run
  double step_tokens = 0;
  std::string refusal = {};  // of refused: the error, in a line
};

struct SearchResult {
  std::vector<LayoutCandidate> planned;  // the shortest step first
  std::vector<LayoutCandidate>
      others;     // of each layout without a plan, the one that needs least memory
  int tried = 0;  // candidates that a check before the launch has seen
};

/// Tries the layouts of layouts_of in the order of their bounds, and of each the choices of a table
/// that save memory, the cheapest first: micro-batches as large as memory permits, and smaller ones
/// as long as these are faster. A layout whose bound is longer than the tenth best step is not
/// tried. Errors (input): those of the config itself; nothing fits.
SearchResult search_layouts(const SearchedRun& run, Planner& planner);

/// Trains the first `count` of the planned candidates for some steps, in turn, on this machine, by
/// this program; puts them in the order of their steps. `words` are all of the command line that
/// the candidates' runs need besides SearchedRun's overrides. Errors: a run fails.
void run_best(const SearchedRun& run, SearchResult& result, std::size_t count,
              const std::vector<std::string>& words);

/// The config of a candidate.
runs::RunSpec config_of(const SearchedRun& run, const LayoutCandidate& candidate);

}  // namespace tessera::app
