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
import tessera.options;
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

struct PipelineOptions {
  std::string schedule = "1f1b";
  std::string schedule_file;
  int stages_per_rank = 0;
  std::vector<std::string> split;
};

const OptionTable<PipelineOptions>& options_table() {
  using P = PipelineOptions;
  static const auto table =
      OptionTable<P>()
          .add("schedule", &P::schedule,
               fmt::format("One of `{}`.", fmt::join(pipeline::schedule_kind_names(), "`, `")))
          .add("schedule_file", &P::schedule_file, "A file with a schedule, instead.")
          .add("stages_per_rank", &P::stages_per_rank,
               "How many stages a rank has. 0: the least that the schedule takes: 2 of "
               "`interleaved` and `zero_bubble_v`, 1 of others.",
               {.low = 0})
          .add("split", &P::split,
               "The first module of each stage but the first: `[\"model.layers.2\"]`. Without it "
               "stages are balanced.");
  return table;
}

class PipelineStyle final : public ParallelStyle {
 public:
  explicit PipelineStyle(Options& options)
      : options_(options), settings_(options_table().read(options)) {
    if (!settings_.schedule_file.empty()) {
      from_file_ =
          pipeline::parse_schedule(text_of(settings_.schedule_file), settings_.schedule_file);
    } else if (const pipeline::ScheduleKind* const kind =
                   pipeline::find_schedule_kind(settings_.schedule)) {
      stages_per_rank_ =
          settings_.stages_per_rank == 0 ? kind->least_stages_per_rank : settings_.stages_per_rank;
    } else {
      options.refuse(fmt::format("option 'schedule' must be {} (got '{}')",
                                 fmt::join(pipeline::schedule_kind_names(), ", "),
                                 settings_.schedule));
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
    return pipeline::make_schedule(
        settings_.schedule,
        {.ranks = ranks, .stages_per_rank = stages_per_rank_, .micro_batches = micro_batches});
  }

  std::vector<std::size_t> begins_of(nn::LanguageModel& model, std::size_t stages) const {
    if (!settings_.split.empty()) {
      std::vector<std::size_t> begins;
      try {
        begins = pipeline_style::by_hand(model, settings_.split);
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
  PipelineOptions settings_;
  int stages_per_rank_ = 0;
  std::optional<pipeline::Schedule> from_file_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>(
      "Pipeline", [](Options& options) { return std::make_unique<PipelineStyle>(options); });
}
