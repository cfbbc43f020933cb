// The metrics file: one JSON object per line, one line per step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::app {

/// The metrics of one step. Steps are counted from 1 here: the number of updates made.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;       // mean over the step's tokens, before the update
  double grad_norm = 0;  // global, before clipping
  double lr = 0;
  bool skipped = false;  // the gradients were not finite, and nothing was updated
  double tokens_per_second = 0;
  double seconds = 0;              // of this step, without validation and checkpoints
  double save_seconds = 0;         // that the save after the step before has held the run up
  std::uint64_t memory_bytes = 0;  // of the rank that writes
  /// Peaks of what its tensors hold, since the first step: by category, and "total".
  std::vector<std::pair<std::string, std::int64_t>> memory_peaks = {};
  std::optional<double> validation_loss;
};

/// The line's text, without the end of line. Numbers round-trip; NaN and infinities are null.
std::string to_json(const StepMetrics& metrics);

class MetricsWriter {
 public:
  /// Opens the file and creates its folders. `resumed_step` > 0 keeps the lines of steps up to it
  /// and drops later and incomplete ones, so that no step occurs twice; 0 starts an empty file.
  /// Throws Error (run) when the file cannot be written.
  MetricsWriter(std::filesystem::path file, std::int64_t resumed_step);
  MetricsWriter(MetricsWriter&&) = delete;
  ~MetricsWriter();
  /// Appends one line, in one write: readers see whole lines, also after a kill.
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace tessera::app
