module;
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.optim;
import :section_keys;

namespace tessera::runs {

std::vector<Key> optimizer_keys() {
  using O = OptimizerConfig;
  constexpr auto s = &RunSpec::optimizer;
  return {
      {"optimizer.name", field<s, &O::name>,
       "`adamw` (decoupled decay, bias correction), `sgd`, another built-in optimizer, or what a "
       "plugin provides ([optimizers.md](optimizers.md))."},
      {"optimizer.lr", field<s, &O::lr>, "The highest learning rate of the schedule.", positive},
      {"optimizer.options", field<s, &O::options>,
       "The optimizer's own options, such as `{ betas = [0.9, 0.95], eps = 1e-8 }` of `adamw` and "
       "`{ momentum = 0.9, nesterov = true }` of `sgd`."},
      {"optimizer.weight_decay", field<s, &O::weight_decay>, "Strength of the weight decay.",
       not_negative},
      {"optimizer.decay",
       words<s, &O::decay, optim::Decay>(
           {{"matrices", optim::Decay::matrices}, {"all", optim::Decay::all}}),
       "Which parameters decay: `matrices` (parameters of two or more dims, embeddings included) "
       "or `all`."},
      {"optimizer.groups", field<s, &O::groups>,
       "Parameters with settings of their own: tables with `on` (patterns over the parameters' "
       "names), `lr`, `weight_decay`, and `name` and `options` of another optimizer. Of several "
       "groups that match a parameter, the last one that has a setting decides it."},
      {"optimizer.schedule",
       words<s, &O::schedule, optim::ScheduleKind>(
           {{"constant", optim::ScheduleKind::constant},
            {"cosine", optim::ScheduleKind::cosine},
            {"linear", optim::ScheduleKind::linear},
            {"wsd", optim::ScheduleKind::warmup_stable_decay},
            {"inverse_sqrt", optim::ScheduleKind::inverse_sqrt}}),
       "The learning rate after the warm-up: `constant`; down to `min_lr_ratio` at the end along "
       "half a `cosine` or a line (`linear`); constant, and a line down in the `cooldown` before "
       "the end (`wsd`); or with the inverse square root of the step (`inverse_sqrt`)."},
      {"optimizer.schedule_unit",
       words<s, &O::schedule_unit, optim::ScheduleUnit>(
           {{"steps", optim::ScheduleUnit::steps}, {"tokens", optim::ScheduleUnit::tokens}}),
       "What `schedule_end`, `warmup` and `cooldown` count: `steps`, or `tokens` (of the whole "
       "step: "
       "`train.batch * data.seq_len`). A schedule by tokens continues from its position when "
       "a run is continued with another batch."},
      {"optimizer.schedule_end", field<s, &O::schedule_end>,
       "Where `cosine`, `linear` and `wsd` end; afterwards the learning rate stays. 0: at the end "
       "of "
       "the run.",
       from(0)},
      {"optimizer.warmup", field<s, &O::warmup>,
       "Steps or tokens in which the learning rate rises to `lr`.", from(0)},
      {"optimizer.cooldown", field<s, &O::cooldown>,
       "The last steps or tokens before the end, in which `wsd` lowers the learning rate.",
       from(0)},
      {"optimizer.min_lr_ratio",
       field<s, &O::min_lr_ratio>,
       "Where `cosine`, `linear` and `wsd` end, and the minimum of `inverse_sqrt`, as a share of "
       "`lr`.",
       {0, 1}},
  };
}

}  // namespace tessera::runs
