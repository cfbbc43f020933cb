module;
#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.data;
import tessera.collective;
import tessera.models;
import tessera.optim;

namespace tessera::runs {

std::string word_of(const RunSpec& spec, const std::string& key) {
  RunSpec copy = spec;  // a slot is where a key is written too
  for (const Key& one : config_keys(spec.model.family)) {
    if (const Slot slot = one.path == key ? one.slot(copy, 0) : Slot();
        const auto* words = std::get_if<WordField>(&slot)) {
      return words->word();
    }
  }
  require(false, key);
  return {};
}

bool Key::in_list() const { return section() == "parallel"; }

namespace {

template <auto Section, auto Member>
Slot field(RunSpec& config, std::size_t /*entry*/) {
  return &((config.*Section).*Member);
}

/// A field of an enumeration. The table is there for good: slots refer to it.
template <auto Section, auto Member, class E>
std::function<Slot(RunSpec&, std::size_t)> words(const WordField::Words<E>& table) {
  static const WordField::Words<E> kept = table;
  return [](RunSpec& config, std::size_t /*entry*/) {
    return WordField((config.*Section).*Member, kept);
  };
}

template <auto Member>
Slot style_field(RunSpec& config, std::size_t entry) {
  return &(config.parallel.at(entry).*Member);
}

constexpr double largest_size = 1 << 24;
constexpr double largest_count = 1e15;

Range from(double low, double high = largest_count) { return {low, high, false, false}; }
constexpr Range positive{0, no_limit, true, false};
constexpr Range not_negative{0};
constexpr Range below_one{0, 1, false, true};

std::vector<Key> model_keys() {
  using M = ModelConfig;
  constexpr auto s = &RunSpec::model;
  return {
      {"model.family", field<s, &M::family>,
       "The family of models ([models.md](models.md)): `llama`, or what a plugin provides. It "
       "determines the further keys of this section."},
      {.path = "model.from",
       .slot = field<s, &M::from>,
       .doc = "A folder in Hugging Face's format (`config.json`, `*.safetensors`), a GGUF "
              "file, or a checkpoint of another run (its tokenizer, template and options too), to "
              "start from. It "
              "determines every size, so the other keys of this section except `dropout`, "
              "`adapter` and `base` must be absent.",
       .is_path = true},
      {.path = "model.base",
       .slot = field<s, &M::base>,
       .doc = "Where the base of the checkpoint in `model.from` is now, if it has moved since the "
              "checkpoint was saved ([checkpoint-base.md](checkpoint-base.md)).",
       .is_path = true},
      {.path = "model.adapter",
       .slot = field<s, &M::adapter>,
       .doc = "A folder in PEFT's format (`adapter_config.json`, `adapter_model.safetensors`) with "
              "the low-rank updates to start from. Ranks, scales and layers must be those that the "
              "styles make.",
       .is_path = true},
      {"model.new_tokens",
       words<s, &M::new_tokens, NewTokens>(
           {{"error", NewTokens::error}, {"mean", NewTokens::mean}}),
       "What happens to tokens that `data.tokenizer` has and the model in `model.from` has not "
       "([data.md](data.md#new-tokens)). `error`: the run is refused. `mean`: embedding and head "
       "get a row for each, the mean of the folder's rows."},
      {"model.vocab", field<s, &M::vocab>,
       "Number of token ids; only with `data.tokens`, otherwise the tokenizer determines it.",
       from(0, largest_size)},
      {"model.dropout", field<s, &M::dropout>,
       "Probability with which an activation is dropped while training, also of a model from a "
       "folder, whatever its config.json says.",
       below_one},
  };
}

Range range_of(const models::ModelRange& range) {
  Range result;
  result.low = range.low.value_or(result.low);
  result.high = range.high.value_or(result.high);
  result.low_open = range.low_open;
  return result;
}

std::vector<Key> family_keys(const std::string& family) {
  std::vector<Key> keys;
  for (const models::ModelKey& own : models::model_family(family, "model.family").keys()) {
    Key key{.path = "model." + own.name,
            .slot =
                [name = own.name, initial = own.initial](RunSpec& config, std::size_t /*entry*/) {
                  auto& value = config.model.sizes.try_emplace(name, initial).first->second;
                  return std::visit([](auto& number) { return Slot(&number); }, value);
                },
            .doc = own.doc,
            .range = range_of(own.range),
            .choices = own.choices,
            .of_family = true};
    keys.push_back(std::move(key));
  }
  return keys;
}

/// The path of a file or a folder.
template <class Field>
Key path_key(const std::string& path, Field field, const std::string& doc) {
  return {.path = path, .slot = field, .doc = doc, .is_path = true};
}

/// Where data come from and how they become tokens.
std::vector<Key> source_keys() {
  using D = DataConfig;
  constexpr auto s = &RunSpec::data;
  return {
      {.path = "data.text",
       .slot = field<s, &D::text>,
       .doc = "Text files, folders (all files below, by path; links are followed; hidden and empty "
              "files and what is not a file are left out, and the table before the run names them) "
              "or shell patterns such as `/usr/share/perl/5*/pod`. They are read one after the "
              "other; a "
              "file that is reached twice is taken once. Each is one text.",
       .is_path = true},
      {.path = "data.jsonl",
       .slot = field<s, &D::jsonl>,
       .doc = "Instead of `text`: files of records, a JSON object in each line, or folders and "
              "patterns of them ([data.md](data.md)): conversations (`messages`), `prompt` and "
              "`completion`, `text`, or `prompt`, `chosen` and `rejected`.",
       .is_path = true},
      {.path = "data.tokens",
       .slot = field<s, &D::tokens>,
       .doc = "Instead of `text`: NumPy files (`.npy`) of ready token ids, one dimension, "
              "little-endian u16, u32 or i32. Needs `model.vocab` or `model.from`.",
       .is_path = true},
      {"data.sources", field<s, &D::sources>,
       "Instead of the three: several sources, tables with one of `text`, `jsonl` and `tokens` and "
       "a `weight` (default 1): the share of a step's rows that are of the source."},
      {"data.tokenizer", field<s, &D::tokenizer>,
       "How text becomes tokens ([tokenizers.md](tokenizers.md)): a folder or file of a tokenizer, "
       "`bytes` (every byte is a token, 256 symbols), or the name of a plugin. `auto`: the "
       "tokenizer in the folder or file of `model.from`, or `bytes` where it has none."},
      {"data.tokenizer_options", field<s, &D::tokenizer_options>,
       "Options of the tokenizer's kind, such as `{ add_bos = false }` of SentencePiece."},
      {.path = "data.chat_template",
       .slot = field<s, &D::chat_template>,
       .doc = "A file with the template that makes a text of a conversation. Empty: that of the "
              "tokenizer's folder.",
       .is_path = true},
      {"data.template_options", field<s, &D::template_options>,
       "Variables of the template, such as `{ enable_thinking = false }`. `now`, such as "
       "\"2026-01-31\", is the date that its strftime_now reads."},
      {"data.template_members", field<s, &D::template_members>,
       "Members of records that are variables of the template too, such as `[\"documents\"]`. "
       "`tools` and the members of `chat_template_kwargs` always are; others are not."},
      {"data.end_tokens", field<s, &D::end_tokens>,
       "Tokens that end generated texts besides the tokenizer's own, such as `[\"<|eot_id|>\"]`."},
      {"data.special_tokens",
       words<s, &D::special_tokens, data::SpecialText>({{"read", data::SpecialText::read},
                                                        {"letters", data::SpecialText::letters},
                                                        {"refuse", data::SpecialText::refuse}}),
       "What a special token is that is written in a text, a prompt or a completion: the token "
       "(`read`), its letters (`letters`), or an error (`refuse`). Generation, evaluation and "
       "serving of the run's checkpoints do the same ([data.md](data.md#special-tokens))."},
  };
}

/// What of the data is trained, and in which rows.
std::vector<Key> row_keys() {
  using D = DataConfig;
  constexpr auto s = &RunSpec::data;
  return {
      {"data.train_on",
       words<s, &D::train_on, data::TrainOn>(
           {{"answers", data::TrainOn::answers}, {"all", data::TrainOn::all}}),
       "Whose loss counts. `answers`: of conversations the assistant's answers, of prompts the "
       "completion, of texts everything. `all`: every token."},
      {"data.allow_dropped", field<s, &D::allow_dropped>,
       "Kinds of contents that the template may leave out of a conversation; they are counted: "
       "`content`, `system`, `reasoning`, `tool_calls`, `tool_results`, `tools`. Others are an "
       "error ([conversations.md](conversations.md#what-a-template-leaves-out))."},
      {"data.bad_records",
       words<s, &D::bad_records, BadRecords>(
           {{"refuse", BadRecords::refuse}, {"skip", BadRecords::skip}}),
       "What is done with records that have a fault: the run is refused, and says where they are "
       "(`refuse`), or they are left out and counted (`skip`)."},
      {"data.too_long",
       words<s, &D::too_long, data::TooLong>({{"error", data::TooLong::error},
                                              {"skip", data::TooLong::skip},
                                              {"cut", data::TooLong::cut}}),
       "What is done with a conversation or completion of more than `seq_len` + 1 tokens: it is an "
       "`error`, it is left out (`skip`), or its end is (`cut`). The table before the run says how "
       "many."},
      {"data.packing",
       words<s, &D::packing, RowContent>(
           {{"none", RowContent::one_document}, {"documents", RowContent::documents}}),
       "What a row holds of conversations and completions ([data.md](data.md#packing)). `none`: "
       "one of them, and padding. `documents`: as many whole ones as fit; each is computed as if "
       "it were alone."},
      {"data.seq_len", field<s, &D::seq_len>,
       "Tokens in a sequence. Window `w` is tokens `[w*seq_len, (w+1)*seq_len + 1)`: inputs are "
       "all but the last, targets all but the first.",
       from(1, largest_size)},
      {"data.order",
       words<s, &D::order, RowOrder>(
           {{"shuffled", RowOrder::shuffled}, {"sequential", RowOrder::sequential}}),
       "`sequential`: row `i` of step `s` is window `s*batch + i`. `shuffled`: a new permutation "
       "of the windows every epoch, a function of `train.seed` and the epoch alone."},
      {"data.validation", field<s, &D::validation>,
       "Share of the tokens or documents, at their end, that is never trained on. 0: no "
       "validation.",
       below_one},
      {.path = "data.validation_files",
       .slot = field<s, &D::validation_files>,
       .doc = "Files to validate with, instead of a share of the data: by their names `.npy`, "
              "`.jsonl`, or text.",
       .is_path = true},
      {"data.validation_windows", field<s, &D::validation_windows>,
       "Windows of a validation, spread evenly over that part and rounded down to whole "
       "batches. 0: all.",
       from(0)},
      {"data.validate_every", field<s, &D::validate_every>,
       "Steps between two validations; there is always one at the end. 0: only at the end.",
       from(0)},
  };
}

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

std::vector<Key> train_keys() {
  using T = TrainConfig;
  constexpr auto s = &RunSpec::train;
  return {
      {"train.objective",
       words<s, &T::objective, ObjectiveKind>(
           {{"next_token", ObjectiveKind::next_token}, {"dpo", ObjectiveKind::dpo}}),
       "What is minimised. `next_token`: the mean loss of the tokens. `dpo`: preferences between "
       "two answers are learned ([preferences.md](preferences.md))."},
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

std::vector<Key> run_keys() {
  return {
      {"mesh.axes", field<&RunSpec::mesh, &MeshConfig::axes>,
       "Names of the mesh's axes, outermost first. None: one rank."},
      {"mesh.shape", field<&RunSpec::mesh, &MeshConfig::shape>,
       "Ranks along each axis; their product is the number of ranks.", from(1, 65536)},
      {"mesh.latency_us", field<&RunSpec::mesh, &MeshConfig::latency_us>,
       "Of each axis: microseconds to begin a collective, by which redistributions are planned. "
       "None: 10 on each axis.",
       not_negative},
      {"mesh.bandwidth_gb", field<&RunSpec::mesh, &MeshConfig::bandwidth_gb>,
       "Of each axis: gigabytes that a rank receives in a second. Given together with "
       "`mesh.latency_us`. None: 5 on each axis.",
       positive},
      {"mesh.measure_links", field<&RunSpec::mesh, &MeshConfig::measure_links>,
       "Measure both figures when the run starts. Sums over several axes may then be computed in "
       "another order in the next run, which changes their last bits."},
      {"mesh.background", field<&RunSpec::mesh, &MeshConfig::background>,
       "Move the data of collectives on a thread of its own while the rank computes. Faster where "
       "links are slow or cores are idle; otherwise the rank moves it while it waits."},
      {.path = "mesh.device_collectives",
       .slot =
           words<&RunSpec::mesh, &MeshConfig::device_collectives, collective::DeviceCollectives>(
               {{"ordered", collective::DeviceCollectives::ordered},
                {"own_order", collective::DeviceCollectives::own_order},
                {"host", collective::DeviceCollectives::host}}),
       .doc =
           "How collectives move between devices: `ordered` (by the plugin for the device, with "
           "sums along the tree over the ranks and the CPU's bits), `own_order` (also with the "
           "sums of the plugin's library: other bits), `host` (through the memory of the host)."},
      {"mesh.transport", field<&RunSpec::mesh, &MeshConfig::transport>,
       "How machines are connected: `auto` (where the ranks are on several: `tcp` where they have "
       "an address, else the installed transport), `shm` (all ranks must be on one machine), or a "
       "transport, such as `mpi`."},
      {"mesh.interface", field<&RunSpec::mesh, &MeshConfig::interface>,
       "The network interface of each machine, by name or address, at which its ranks and second "
       "homes listen, such as `ib0`; `0.0.0.0`: all. Where a machine's has another name, its "
       "`TESSERA_INTERFACE` says so. Empty: the address through which the machines meet."},
      path_key("plugins.paths", field<&RunSpec::plugins, &PluginsConfig::paths>,
               "Plugin files, or folders of them, to load besides the installed ones."),
      {.path = "parallel.style",
       .slot = style_field<&StyleConfig::style>,
       .doc = "Name of the parallel style (`tessera plugin list` shows them).",
       .required = true},
      {.path = "parallel.axis",
       .slot = style_field<&StyleConfig::axis>,
       .doc =
           "The mesh axis on which it works, or a list of axes for a style that takes several. A "
           "style that only changes modules has none."},
      {.path = "parallel.on",
       .slot = style_field<&StyleConfig::on>,
       .doc = "Patterns over the modules' qualified names: `*` within a part, `**` over parts, "
              "`{a,b}` alternatives, `.` the whole model.",
       .required = true},
      {"parallel.options", style_field<&StyleConfig::options>,
       "The style's own options (`tessera plugin info NAME` lists them)."},
  };
}

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

std::vector<Key> graph_keys() {
  using G = GraphConfig;
  constexpr auto g = &RunSpec::graph;
  return {
      {"graph.capture", field<g, &G::capture>,
       "Capture the step as a program of local operators and collectives before the first one, and "
       "execute that program in every step: the same bits, less time of the host "
       "([graph.md](graph.md))."},
      {"graph.mode", field<g, &G::mode>,
       "With `graph.capture`, and without `[[parallel]]` entries: how the step of one rank is "
       "placed on the mesh, whose axes all split the batch: `expand`, `replicate`, `fully_shard` "
       "or `default` ([graph-modes.md](graph-modes.md#modes-of-data-parallelism)). Empty: the "
       "entries decide."},
      {"graph.executor",
       field<g, &G::executor>,
       "What executes the program, with the same bits ([graph-executors.md](graph-executors.md)). "
       "`compiled` is `planned` with kernels that are generated and compiled.",
       {},
       {"planned", "compiled", "interpreter"}},
      {"graph.device_graphs", field<g, &G::device_graphs>,
       "With `graph.capture` and a device that has them (`cuda`): what is the same in each step is "
       "recorded in the second one and then queued as a few graphs, with the same bits "
       "([graph-executors.md](graph-executors.md#graphs-of-a-device))."},
      {"graph.passes", field<g, &G::passes>,
       "What improves the program, in this order: changes that keep bits "
       "([graph-passes.md](graph-passes.md#passes)). `[]`: nothing."},
      {"graph.transforms", field<g, &G::transforms>,
       "With `graph.capture`: changes, which may compute something else, after the passes and in "
       "this "
       "order ([graph-changes.md](graph-changes.md))."},
      {"graph.across_steps", field<g, &G::across_steps>,
       "With `graph.capture`: a step leaves its update to the next one, which makes it where "
       "parameters are first used, while gathers are under way: the same bits, and the shards of "
       "gradients are kept in between ([graph-modes.md](graph-modes.md#across-steps))."},
      {"graph.verify", field<g, &G::verify>,
       "With `graph.capture`: of so many replayed steps one is also taken as it is written, from "
       "the same state, and a bit that differs ends the run "
       "([graph.md](graph.md#verified-steps)). 0: none is.",
       from(0)},
      {"graph.memory_budget", field<g, &G::memory_budget>,
       "With `graph.capture`: the memory that a step of a rank may need, as `4GiB` or `900MiB`. "
       "What is needed for backward is then computed again instead of kept, where this costs "
       "least ([graph-memory.md](graph-memory.md)). Empty: all is kept."},
      path_key(
          "graph.offload", field<g, &G::offload>,
          "With `graph.memory_budget`: a folder on a fast disk. Values may be kept there, in a "
          "file without a name, instead of being computed again "
          "([graph-memory.md](graph-memory.md#values-in-a-file)). Empty: none are."),
      path_key("graph.dump", field<g, &G::dump>,
               "With `graph.capture`: a folder that gets the program before and after each pass, "
               "and the differences; rank r's in `rank-r`."),
      path_key("graph.program", field<g, &G::program>,
               "With `graph.capture`: a file to which rank 0's program is written as text; rank "
               "r's goes to the same name with `.r`."),
  };
}

std::vector<Key> checkpoint_keys() {
  using C = CheckpointConfig;
  constexpr auto c = &RunSpec::checkpoint;
  return {
      path_key("checkpoint.folder", field<c, &C::folder>,
               "Where checkpoints are written. Empty: none are written."),
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
       .is_path = true},
      {"checkpoint.allow", field<c, &C::allow>,
       "What may differ between the config and the run that is continued, by key or section "
       "(`optimizer.lr`, `data`; `data.content` is the text itself). Without it, a difference in "
       "anything that changes the loss curve is an error that lists it. Steps, layout, world size, "
       "accumulation, threads, device and logs may always differ."},
  };
}

}  // namespace

std::vector<Key> config_keys(const std::string& family) {
  std::vector<Key> all = model_keys();
  std::ranges::move(family_keys(family), std::back_inserter(all));
  for (const auto part :
       {source_keys, row_keys, train_keys, gradient_keys, healing_keys, reproducible_keys, dpo_keys,
        expert_keys, optimizer_keys, run_keys, log_keys, graph_keys, checkpoint_keys}) {
    std::ranges::move(part(), std::back_inserter(all));
  }
  RunSpec any;
  any.parallel.resize(1);
  for (Key& key : all) {
    if (const Slot slot = key.slot(any, 0); const auto* words = std::get_if<WordField>(&slot)) {
      key.choices = words->words();
    }
  }
  return all;
}

}  // namespace tessera::runs
