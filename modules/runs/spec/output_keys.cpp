module;
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import :section_keys;

namespace tessera::runs {

/// What a run tells.
std::vector<Key> log_keys() {
  using L = LogConfig;
  using T = TraceConfig;
  constexpr auto l = &RunSpec::log;
  constexpr auto t = &RunSpec::trace;
  return {
      {"log.every", field<l, &L::every>,
       "Steps between two lines where the output is not a terminal.", from(1)},
      path_key("log.metrics", field<l, &L::metrics>,
               "File of the metrics, one JSON object per step. Empty: none."),
      path_key(
          "log.tensorboard", field<l, &L::tensorboard>,
          "Folder for TensorBoard's event files, with what the metrics file has. Empty: none."),
      path_key(
          "log.blackbox", field<l, &L::blackbox>,
          "Folder for what each rank did last, when the run fails: a file of each machine, for "
          "`tessera blackbox`. Empty: none."),
      {"log.stragglers", field<l, &L::stragglers>,
       "A rank for which the others wait in most steps is [named in a "
       "warning](when-something-goes-wrong.md#a-rank-is-slow) where it delays them by more than "
       "this share of a step's time. 0: none is.",
       from(0)},
      {"log.sample", field<l, &L::sample>,
       "Tokens of text to generate with the trained model at the end (text data only). 0: none.",
       from(0, largest_size)},
      {"log.sample_prompt", field<l, &L::sample_prompt>, "The prompt of that text."},
      path_key("trace.file", field<t, &T::file>,
               "File of a [trace](tracing.md) of a few steps, which ui.perfetto.dev opens. Empty: "
               "none."),
      {"trace.steps", field<t, &T::steps>,
       "The first and the last step to trace, counted from 1. `[]`: the second to the fourth step "
       "of the run.",
       from(1)},
  };
}

std::vector<Key> sink_keys() {
  return {
      {.path = "sinks.sink",
       .slot = entry_field<&RunSpec::sinks, &SinkConfig::sink>,
       .doc = "Who else is told what the run tells ([sinks.md](sinks.md)): `command`, or a plugin "
              "(`prometheus`, `mlflow`, `otlp`).",
       .required = true},
      {"sinks.options", entry_field<&RunSpec::sinks, &SinkConfig::options>,
       "The sink's own options (`tessera plugin info NAME` lists them)."},
  };
}

std::vector<Key> checkpoint_keys() {
  using C = CheckpointConfig;
  constexpr auto c = &RunSpec::checkpoint;
  return {
      {.path = "checkpoint.folder",
       .slot = field<c, &C::folder>,
       .doc = "Where checkpoints are written: a folder, or an address of a "
              "[store](checkpoints-in-stores.md). Empty: none are written.",
       .is_path = true,
       .reads = Reads::checkpoints},
      {"checkpoint.every", field<c, &C::every>,
       "Steps between two checkpoints; there is always one at the end. 0: only at the end.",
       from(0)},
      {"checkpoint.keep", field<c, &C::keep>, "How many of the newest are kept. 0: all.",
       from(0, 1e9)},
      {.path = "checkpoint.save",
       .slot = words<c, &C::save, SaveMode>({{"async", SaveMode::async}, {"sync", SaveMode::sync}}),
       .doc = "`async`: training continues while a copy of the state is written; `sync`: it waits, "
              "and needs no memory for the copy. The last checkpoint of a run is always waited "
              "for."},
      {.path = "checkpoint.when_busy",
       .slot =
           words<c, &C::when_busy, WhenBusy>({{"wait", WhenBusy::wait}, {"skip", WhenBusy::skip}}),
       .doc = "When a checkpoint is due while the one before is still being written: `wait` for "
              "that one, or `skip` the new one, with a line that says so."},
      {"checkpoint.weights",
       words<c, &C::weights, SavedWeights>(
           {{"trained", SavedWeights::trained}, {"all", SavedWeights::all}}),
       "`trained`: weights of `model.from` that the run does not train are not in its "
       "checkpoints, which name that model and the hash of its content "
       "([checkpoint-base.md](checkpoint-base.md)); `all`: they are."},
      {.path = "checkpoint.resume",
       .slot = field<c, &C::resume>,
       .doc = "`auto`: continue from the newest checkpoint in `folder` if there is one; `never`: "
              "start a new run, in a folder without checkpoints; or the path of a checkpoint.",
       .choices = {"auto", "never"},
       .is_path = true,
       .reads = Reads::checkpoints},
      {"checkpoint.allow", field<c, &C::allow>,
       "What may differ between the config and the run that is continued, by key or section "
       "(`optimizer.lr`, `data`; `data.content` is the text itself). Without it, a difference in "
       "anything that changes the loss curve is an error that lists it. Steps, layout, world size, "
       "accumulation, threads, device and logs may always differ."},
  };
}

}  // namespace tessera::runs
