// Pipeline: divides a model into stages along a mesh axis. Each rank has the modules of its stages
// only, and works on one micro-batch while the ranks of other stages work on others, in the order
// of a schedule. The plan cuts the model and the steps of a training follow the schedule; here is
// where the borders are and which schedule it is.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.pipeline;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "division.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) {
    fail_input({.thing = file,
                .wrong = "the schedule cannot be read",
                .advice = "give a file that `tessera pipeline` has written"});
  }
  return text;
}

class PipelineStyle final : public ParallelStyle {
 public:
  explicit PipelineStyle(Options& options)
      : options_(options),
        kind_(options.text("schedule", "1f1b")),
        file_(options.text("schedule_file", "")),
        stages_per_rank_(options.integer("stages_per_rank", 0)),
        split_(options.texts("split")) {
    if (stages_per_rank_ < 0) {
      options.refuse(
          fmt::format("option 'stages_per_rank' must be at least 1, or 0 for the least "
                      "that the schedule takes (got {})",
                      stages_per_rank_));
    }
    if (!file_.empty()) {
      from_file_ = pipeline::parse_schedule(text_of(file_), file_);
    } else if (const pipeline::ScheduleKind* const kind = pipeline::find_schedule_kind(kind_)) {
      stages_per_rank_ = stages_per_rank_ == 0 ? kind->least_stages_per_rank : stages_per_rank_;
    } else {
      options.refuse(fmt::format("option 'schedule' must be {} (got '{}')",
                                 fmt::join(pipeline::schedule_kind_names(), ", "), kind_));
    }
  }

  StyleFacts facts() const override { return {.divides_model = true}; }
  void apply(const StyleTarget&) override {}

  StageDivision divide(nn::LanguageModel& model, int ranks) override {
    // Which stages a rank has does not depend on the number of micro-batches.
    const pipeline::Schedule some = from_file_ ? *from_file_ : schedule(ranks, 2 * ranks);
    return {.begins = begins_of(model, static_cast<std::size_t>(some.stages())),
            .rank_of_stage = some.rank_of_stage,
            .schedule = [this, ranks](int micro_batches) {
              return from_file_ ? *from_file_ : schedule(ranks, micro_batches);
            }};
  }

 private:
  pipeline::Schedule schedule(int ranks, int micro_batches) const {
    return pipeline::make_schedule(kind_, {.ranks = ranks,
                                           .stages_per_rank = static_cast<int>(stages_per_rank_),
                                           .micro_batches = micro_batches});
  }

  std::vector<std::size_t> begins_of(nn::LanguageModel& model, std::size_t stages) const {
    if (!split_.empty()) {
      std::vector<std::size_t> begins;
      try {
        begins = pipeline_style::by_hand(model, split_);
      } catch (const Error& error) {
        options_.refuse(fmt::format("option 'split': {}", error.what()));
      }
      if (begins.size() != stages) {
        options_.refuse(
            fmt::format("option 'split' makes {} stages, and the schedule has {}; name "
                        "the first module of each stage but the first",
                        begins.size(), stages));
      }
      return begins;
    }
    const std::vector<double> costs = pipeline_style::costs_of(model);
    const std::size_t layers = costs.size() < 2 ? 0 : costs.size() - 2;
    if (stages > layers) {
      options_.refuse(
          fmt::format("{} stages cannot be made of {} layers; use a shorter axis, fewer "
                      "stages_per_rank, or set 'split'",
                      stages, layers));
    }
    return pipeline_style::balanced(costs, stages);
  }

  Options options_;
  std::string kind_;
  std::string file_;
  std::int64_t stages_per_rank_;
  std::vector<std::string> split_;
  std::optional<pipeline::Schedule> from_file_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>(
      "Pipeline", [](Options& options) { return std::make_unique<PipelineStyle>(options); });
}
