module;
#include <algorithm>
#include <iterator>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.optim;
import :section_keys;

namespace tessera::runs {
namespace {

/// What only runs with the bits of every layout have.
std::vector<Key> layout_free_keys() {
  using T = TrainConfig;
  constexpr auto s = &RunSpec::train;
  std::vector<Key> keys = {
      {"train.virtual_shards", field<s, &T::virtual_shards>,
       "With `train.reproducible=layout`: into how many parts a step is cut, whatever the number "
       "of ranks. It divides `train.batch`, and is at least the ranks that split the batch of any "
       "mesh that the run is to be continued on; ranks that do not divide it wait for the others "
       "at the end of a step.",
       from(1, largest_size)},
      {"train.feature_shards", field<s, &T::feature_shards>,
       "With `train.reproducible=layout`: into how many parts the features of linear layers are "
       "cut, whatever the number of ranks. A power of two, and at least the ranks of any tensor "
       "parallel axis that the run is to be continued on. 1: there is none.",
       from(1, largest_size)},
  };
  for (Key& key : keys) {
    key.of_layout_free = true;
  }
  return keys;
}

}  // namespace

std::vector<Key> train_keys() {
  using T = TrainConfig;
  constexpr auto s = &RunSpec::train;
  return {
      {"train.objective",
       words<s, &T::objective, ObjectiveKind>(
           {{"next_token", ObjectiveKind::next_token},
            {"dpo", ObjectiveKind::dpo},
            {"classification", ObjectiveKind::classification},
            {"token_classification", ObjectiveKind::token_classification}}),
       "What is minimised. `next_token`: the mean loss of the tokens. `dpo`: preferences between "
       "two answers are learned ([preferences.md](preferences.md)). `classification`: the mean "
       "loss of the classes of texts or images ([classification.md](classification.md)). "
       "`token_classification`: that of the classes of words "
       "([further-classes.md](further-classes.md))."},
      {"train.steps", field<s, &T::steps>, "Steps of the optimizer.", from(1)},
      {"train.epochs", field<s, &T::epochs>,
       "Instead of `steps`: how often the rows of all sources are trained on; the steps are "
       "rounded "
       "up. 0: `steps` says how long.",
       from(0, 1e6)},
      {"train.batch", field<s, &T::batch>,
       "Sequences in a step over the whole mesh, or pairs of them (`dpo`): the work does not "
       "depend on the layout.",
       from(1, largest_size)},
      {"train.micro_batch", field<s, &T::micro_batch>,
       "Sequences or pairs that a rank computes at once; gradients are accumulated over the rest. "
       "0: all at "
       "once.",
       from(0, largest_size)},
      {"train.head_rows", field<s, &T::head_rows>,
       "For how many tokens of a rank logits are in memory at once: the head and the loss go "
       "through a micro-batch part by part, and backward computes the logits again "
       "([performance.md](performance.md#logits-in-parts)). 0: for all.",
       from(0, largest_size)},
      {"train.further_weight", field<s, &T::further_weight>,
       "With `model.further_layers`: the mean of the losses of the second token after each one, of "
       "the third and so on is added to the loss, times this number "
       "([further-tokens.md](further-tokens.md)).",
       from(0, 1e6)},
      {"train.seed", field<s, &T::seed>, "Seed of initialisation, data order and dropout.",
       from(0, 9e18)},
  };
}

/// What is done with gradients, which parameters there are, and what they are computed with.
std::vector<Key> gradient_keys() {
  using T = TrainConfig;
  constexpr auto s = &RunSpec::train;
  return {
      {"train.clip_grad_norm", field<s, &T::clip_grad_norm>,
       "Gradients are scaled down to this global norm where it is larger. 0: never.", not_negative},
      {"train.clip_norm_type", field<s, &T::clip_norm_type>,
       "Which norm: `\"1\"`, `\"2\"`, `\"inf\"` (the largest magnitude), or another number more "
       "than 0 as a text. It is also the norm that metrics show."},
      {"train.clip_grad_value", field<s, &T::clip_grad_value>,
       "Each element of the gradients is limited to this magnitude; needs `clip_grad_norm = 0`. 0: "
       "it is not.",
       not_negative},
      {"train.nonfinite_gradients",
       words<s, &T::nonfinite_gradients, optim::NonFinite>(
           {{"error", optim::NonFinite::error}, {"skip", optim::NonFinite::skip}}),
       "What a step does whose gradients are infinite or NaN: it is an `error`, or the step is "
       "left "
       "out on all ranks (`skip`): parameters and the optimizer stay, data and schedule move on."},
      {"train.on_spike", field<s, &T::on_spike>,
       "What is done at a step whose loss or gradient norm is more than `over` spreads above those "
       "before it, such as `{ over = 4.0, action = \"skip\" }` "
       "([questions.md](questions.md#when-a-number-jumps)). Actions: its rows are named "
       "(`warn`), its update is left out (`skip`), the run goes back to its last checkpoint and "
       "leaves the rows out (`rollback`), or it ends (`stop`). Empty: nothing is looked at."},
      {"train.loss_scaling",
       words<s, &T::loss_scaling, LossScaling>(
           {{"none", LossScaling::none}, {"dynamic", LossScaling::dynamic}}),
       "`dynamic`: multiply the loss by a factor that keeps gradients in the range of f16, and "
       "skip "
       "steps that overflow "
       "([optimizers.md](optimizers.md#limits-of-gradients-and-scaled-losses))."},
      {"train.freeze", field<s, &T::freeze>,
       "Patterns over the parameters' names (`model.embed_tokens.*`, `**.norm.weight`): these "
       "parameters are not trained, and take no memory for gradients and optimizer state."},
      {"train.precision",
       words<s, &T::precision, DType>(
           {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}}),
       "What the model computes with. `bf16`: each parameter has a copy in bfloat16, and so are "
       "activations; parameters, optimizer state, reduced gradients and checkpoints stay f32 "
       "([fully-sharded.md](fully-sharded.md#precision)). `f16`: the same in half precision, with "
       "`train.loss_scaling=dynamic`."},
      {"train.parameters",
       words<s, &T::parameters, DType>({{"f32", DType::f32}, {"bf16", DType::bf16}}),
       "What parameters, gradients and the optimizer's state are stored in. `bf16`: 8 bytes for "
       "each parameter instead of 16, without a copy in f32; AdamW rounds with random bits. It "
       "needs `train.precision=bf16` ([parameter-memory.md](parameter-memory.md))."},
      {"train.activation_checkpointing", field<s, &T::activation_checkpointing>,
       "Keep only each layer's input and compute the rest again in the backward pass: less memory, "
       "about a third more work."},
      {"train.threads", field<s, &T::threads>, "Threads per rank. 0: cores / ranks.",
       from(0, 65536)},
      {"train.device", field<s, &T::device>,
       "The device that each rank computes on: `cpu`, or the name of a device plugin. `NAME` gives "
       "each rank of a machine the device of its number there, `NAME:2` gives every rank device "
       "2."},
  };
}

std::vector<Key> healing_keys() {
  using T = TrainConfig;
  constexpr auto s = &RunSpec::train;
  return {
      {"train.heal", field<s, &T::heal>,
       "A run continues by itself when a rank dies, throws an error or hangs: the state is kept in "
       "memory after every step, twice, and the ranks are started again from it "
       "([healing.md](healing.md)). Only where `tessera` itself starts the ranks."},
      {"train.heal_every", field<s, &T::heal_every>,
       "With `train.heal`: after how many steps the state is kept again. So many may be repeated.",
       from(1)},
      {"train.heal_after", field<s, &T::heal_after>,
       "With `train.heal`: a rank that is stopped, or that neither waits for another rank nor uses "
       "a processor, hangs after so many seconds.",
       from(0.1, 1e6)},
      {"train.heal_limit", field<s, &T::heal_limit>,
       "With `train.heal`: how often ranks are started again within an hour, at most; then the "
       "error that stopped them ends the run.",
       from(1, 1e6)},
      {"train.heal_copies", field<s, &T::heal_copies>,
       "With `train.heal` on several machines: how many of them have each machine's part of the "
       "state in memory. 2: the next machine has it too, so that a run survives the loss of a "
       "machine. 1: only its own, in half of the memory.",
       from(1, 2)},
      {"train.heal_wait", field<s, &T::heal_wait>,
       "With `train.heal` on several machines: for how many seconds a run waits for a machine that "
       "takes the place of one that is lost. 0: the loss ends the run.",
       from(0, 1e6)},
      {"train.checksums", field<s, &T::checksums>,
       "After how many steps the ranks compare the bits of what several of them hold (parameters "
       "and optimizer state that are not sharded over all ranks): an error names the rank that "
       "differs, and with `train.heal` the run goes back to the state before. 0: never.",
       from(0)},
  };
}

/// Which runs give the same bits.
std::vector<Key> reproducible_keys() {
  std::vector<Key> keys = {
      {"train.reproducible",
       words<&RunSpec::train, &TrainConfig::reproducible, Reproducible>(
           {{"run", Reproducible::run}, {"layout", Reproducible::layout}}),
       "Which runs give the same bits: those with the same layout (`run`), or those with any "
       "layout (`layout`): losses, gradients and parameters do not depend on the mesh then, and "
       "each micro-batch is one virtual shard ([reproducible.md](reproducible.md))."},
  };
  std::ranges::move(layout_free_keys(), std::back_inserter(keys));
  return keys;
}

std::vector<Key> dpo_keys() {
  using D = DpoConfig;
  constexpr auto s = &RunSpec::dpo;
  return {
      {"dpo.beta", field<s, &D::beta>,
       "What log-ratios to the reference are multiplied by: the larger, the nearer the model stays "
       "to it.",
       positive},
      {"dpo.label_smoothing",
       field<s, &D::label_smoothing>,
       "The share of the preferences that are taken to be the wrong way round.",
       {0, 0.5, false, true}},
      {"dpo.reference",
       words<s, &D::reference, ReferenceKind>({{"auto", ReferenceKind::automatic},
                                               {"copy", ReferenceKind::copy},
                                               {"adapter_off", ReferenceKind::adapter_off}}),
       "What gives the reference's log-probabilities. `copy`: a frozen copy of the starting "
       "weights, sharded like the model. `adapter_off`: the model with its low-rank updates "
       "switched off, which needs no memory. `auto`: `adapter_off` with the styles LoRA and QLoRA, "
       "unless they start from `model.adapter`; else `copy`."},
  };
}

std::vector<Key> expert_keys() {
  using E = ExpertsConfig;
  constexpr auto s = &RunSpec::experts;
  return {
      {"experts.balance_loss", field<s, &E::balance_loss>,
       "Weight of the loss that grows with the imbalance of the experts' loads "
       "([mixture-of-experts.md](mixture-of-experts.md#balance)). 0: none.",
       not_negative},
      {"experts.z_loss", field<s, &E::z_loss>,
       "Weight of the loss that keeps the router's logits small. 0: none.", not_negative},
      {"experts.bias_rate", field<s, &E::bias_rate>,
       "By so much a bias of each expert's score changes in a step, towards equal loads, without a "
       "loss. 0: there is no bias.",
       not_negative},
      {"experts.capacity", field<s, &E::capacity>,
       "While training, an expert takes at most `capacity` times its equal share of each "
       "sequence; later tokens do without it. 0: no limit.",
       not_negative},
  };
}

}  // namespace tessera::runs
