export module tessera.runs:spec;

import tessera.base;
import tessera.stores;
import tessera.models;
import tessera.data;
import tessera.collective;
import tessera.optim;
import :problems;

// The description of a run as plain values: what a config file has, or a program sets.
// section_keys.cppm binds every field to its key, range and documentation.

export namespace tessera::runs {

/// The values of the keys that belong to a family of models.
using ModelNumbers = std::map<std::string, models::ModelValue>;

/// What happens to tokens that the tokenizer has and the model in model.from has not.
enum class NewTokens : std::uint8_t {
  error,
  mean,  // they get rows, each the mean of the others
};

/// The section [model].
struct ModelConfig {
  std::string family = "llama";
  std::string from;     // a folder with config.json and *.safetensors, which determines all sizes
  std::string base;     // where the base of the checkpoint in `from` is now; empty: where it was
  std::string adapter;  // a folder of PEFT with the low-rank updates to start from
  NewTokens new_tokens = NewTokens::error;
  std::int64_t vocab = 0;  // 0 = the tokenizer's
  double dropout = 0.0;

  /// Whether the folder's model gets rows for tokens that it does not have.
  bool adds_tokens() const;
  ModelNumbers sizes;  // of the family's own keys
};

/// What a run minimises.
enum class ObjectiveKind : std::uint8_t {
  next_token,
  dpo,                   // direct preference optimisation
  classification,        // the class of each text or image
  token_classification,  // the class of each word
};

/// What preferences are compared with: the log-probabilities of the starting weights.
enum class ReferenceKind : std::uint8_t {
  automatic,    // adapter_off where low-rank updates start at 0, else copy
  copy,         // a frozen copy of the starting weights
  adapter_off,  // the model with its low-rank updates switched off
};

/// The section [dpo].
struct DpoConfig {
  double beta = 0.1;
  double label_smoothing = 0.0;
  ReferenceKind reference = ReferenceKind::automatic;
};

/// How a mixture of experts is trained (nn::BalanceOptions).
struct ExpertsConfig {
  double balance_loss = 0;
  double z_loss = 0;
  double bias_rate = 0;
  double capacity = 0;  // 0 = no limit
};

/// Which runs give the same bits.
enum class Reproducible : std::uint8_t {
  run,     // the same run again
  layout,  // every layout of it
};
/// How gradients stay within the range of their type.
enum class LossScaling : std::uint8_t { none, dynamic };

/// Options of a style or an optimizer as the text of a JSON object; who reads them checks them.
struct JsonText {
  std::string text = "{}";
};
/// A list of tables, as JSON.
struct JsonList {
  std::string text = "[]";
};

/// The section [train].
struct TrainConfig {
  ObjectiveKind objective = ObjectiveKind::next_token;
  std::int64_t steps = 300;
  double epochs = 0;  // 0 = steps says how long
  std::int64_t batch = 16;
  double further_weight = 0.3;   // of the losses of tokens after the next one
  std::int64_t head_rows = 0;    // 0 = the logits of all tokens at once
  std::int64_t micro_batch = 0;  // 0 = all of a rank's sequences at once
  Reproducible reproducible = Reproducible::run;
  std::int64_t virtual_shards = 8;  // of a step's rows, where reproducible is "layout"
  std::int64_t feature_shards = 1;  // of the dims of weights, likewise
  std::int64_t seed = 1;
  double clip_grad_norm = 1.0;  // 0 = no clipping
  std::string clip_norm_type = "2";
  double clip_grad_value = 0;  // 0 = no clipping
  optim::NonFinite nonfinite_gradients = optim::NonFinite::error;
  LossScaling loss_scaling = LossScaling::none;
  std::vector<std::string> freeze;
  DType precision = DType::f32;   // what the model computes with
  DType parameters = DType::f32;  // what parameters are stored in
  bool activation_checkpointing = false;
  std::int64_t threads = 0;  // per rank; 0 = cores / ranks
  std::string device = "cpu";
  bool heal = false;             // ranks that die are started again
  std::int64_t heal_every = 1;   // steps between two states that are kept
  double heal_after = 30;        // seconds without any sign of life
  std::int64_t heal_limit = 20;  // starts again within an hour
  std::int64_t heal_copies = 2;  // machines that have each machine's part of a state
  double heal_wait = 300;        // seconds for a machine in the place of a lost one; 0: none
  std::int64_t checksums = 0;    // steps between two comparisons of copies; 0: none
  JsonText on_spike;             // see spike_policy; empty: steps are not looked at

  /// Whether the same bits are computed in every layout.
  bool is_layout_free() const;
  /// The rows of a micro-batch, which are a virtual shard in runs that give the same bits in every
  /// layout; 0: all of a rank.
  std::int64_t micro_rows() const;
};

/// What happens to a record that is wrong.
enum class BadRecords : std::uint8_t {
  refuse,
  skip,  // it is left out, and counted
};
/// What a row has.
enum class RowContent : std::uint8_t {
  one_document,
  documents,  // as many as fit
};
/// The order of a source's rows.
enum class RowOrder : std::uint8_t { shuffled, sequential };

/// The section [data].
struct DataConfig {
  std::vector<std::string> text;
  std::vector<std::string> jsonl;
  std::vector<std::string> tokens;
  JsonList sources;
  JsonText columns;                 // names of the records' members
  std::vector<std::string> labels;  // classes in their order; empty: those of the records
  std::string tokenizer = "auto";   // or "bytes", a plugin's kind, or a path
  JsonText tokenizer_options;
  std::string chat_template;  // a file; empty: the tokenizer's
  JsonText template_options;
  std::vector<std::string> template_members;  // members of records that are variables of it
  std::vector<std::string> end_tokens;        // that end generated texts, besides the tokenizer's
  data::SpecialText special_tokens = data::SpecialText::read;
  data::TrainOn train_on = data::TrainOn::answers;
  std::vector<std::string> allow_dropped;  // kinds of contents that a template may leave out
  BadRecords bad_records = BadRecords::refuse;
  data::TooLong too_long = data::TooLong::error;
  RowContent packing = RowContent::one_document;
  std::int64_t seq_len = 256;
  RowOrder order = RowOrder::shuffled;
  std::string exclude;  // a file with the places of rows that are left out; empty: none
  double validation = 0.05;
  std::vector<std::string> validation_files;
  std::int64_t validation_windows = 0;  // 0 = all
  std::int64_t validate_every = 100;

  /// Whether rows hold several documents.
  bool packs() const;
};

/// The section [optimizer].
struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 3e-4;
  JsonText options;
  double weight_decay = 0.1;
  optim::Decay decay = optim::Decay::matrices;
  JsonList groups;
  optim::ScheduleKind schedule = optim::ScheduleKind::constant;
  optim::ScheduleUnit schedule_unit = optim::ScheduleUnit::steps;
  std::int64_t schedule_end = 0;  // in the unit; 0 = the end of the run
  std::int64_t warmup = 0;        // likewise
  std::int64_t cooldown = 0;      // likewise
  double min_lr_ratio = 0.0;

  /// Whether the schedule has an end, which schedule_end may name.
  bool schedule_ends() const;
};

/// The section [mesh].
struct MeshConfig {
  std::vector<std::string> axes;
  std::vector<std::int64_t> shape;
  std::vector<double> latency_us;    // of each axis, or empty
  std::vector<double> bandwidth_gb;  // likewise
  bool measure_links = false;
  bool background = false;
  collective::DeviceCollectives device_collectives = collective::DeviceCollectives::ordered;
  std::string transport = "auto";  // or "shm", or a plugin of the kind transport
  std::string interface;           // of the network, or an address; or empty
};

/// The section [plugins].
struct PluginsConfig {
  std::vector<std::string> paths;
};

/// One name or a list of names.
struct Names {
  std::vector<std::string> all;
};

/// One [[parallel]] entry.
struct StyleConfig {
  std::string style = {};
  Names axis = {};
  std::vector<std::string> on = {};
  JsonText options = {};
  std::string where = {};  // "run.toml:31", for the text of errors found when the style is applied
};

/// One [[sinks]] entry.
struct SinkConfig {
  std::string sink = {};
  JsonText options = {};
  std::string where = {};  // as a StyleConfig has it
};

/// The section [log].
struct LogConfig {
  std::int64_t every = 10;
  std::string metrics = "metrics.jsonl";
  std::string tensorboard;  // folder of event files; empty: none
  double stragglers = 0.1;  // share of a step from which a rank waited for is named; 0: none is
  std::string blackbox;     // folder for what ranks did last, when they fail; empty: none
  std::int64_t sample = 0;  // tokens of text that are generated at the end; 0 = none
  std::string sample_prompt = "The ";
};

/// The section [trace].
struct TraceConfig {
  std::string file;                 // empty: no trace
  std::vector<std::int64_t> steps;  // the first and the last one, from 1; empty: see trace_range
};

/// Those that say of themselves that they run by default.
std::vector<std::string> default_passes();

/// The section [graph].
struct GraphConfig {
  bool capture = false;
  std::string mode;  // of data parallelism; empty: [[parallel]] entries decide
  std::string executor = "planned";
  bool device_graphs = false;
  std::vector<std::string> passes = default_passes();
  std::vector<std::string> transforms;
  bool across_steps = false;  // updates are left to the next step
  std::int64_t verify = 0;    // of so many replayed steps one is taken as it is written too
  std::string memory_budget;  // of a step, "4GiB"; empty: none. See budget_bytes
  std::string offload;        // a folder for values that do not fit; empty: none are kept elsewhere
  std::string dump;           // a folder with the program before and after each pass; empty: none
  std::string program;        // where the captured program is written; empty: nowhere
};

/// Who waits for a checkpoint that is written.
enum class SaveMode : std::uint8_t {
  async,  // nobody: a copy of the state is written
  sync,   // the training
};
/// The weights in checkpoints.
enum class SavedWeights : std::uint8_t {
  trained,  // others are those of model.from
  all,
};
/// What happens to a checkpoint that is due while another one is written.
enum class WhenBusy : std::uint8_t {
  wait,
  skip,  // it is left out
};

/// The section [checkpoint].
struct CheckpointConfig {
  std::string folder = "checkpoints";
  std::int64_t every = 100;
  std::int64_t keep = 3;
  SaveMode save = SaveMode::async;
  WhenBusy when_busy = WhenBusy::wait;
  SavedWeights weights = SavedWeights::trained;
  std::string resume = "auto";
  std::vector<std::string> allow;  // what may differ from the run that is continued
};

/// What is trained, on what, and how: one run. Errors name its fields as a config does:
/// "train.batch".
struct RunSpec {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  DpoConfig dpo;
  ExpertsConfig experts;
  OptimizerConfig optimizer;
  MeshConfig mesh;
  PluginsConfig plugins;
  std::vector<StyleConfig> parallel;
  LogConfig log;
  std::vector<SinkConfig> sinks;
  TraceConfig trace;
  GraphConfig graph;
  CheckpointConfig checkpoint;

  /// This machine among those of the run: no key, as it is another one on each.
  collective::MachineOptions machine;

  /// The words of the command that reads it, for records; empty: a program made it.
  std::vector<std::string> command = {};
  std::filesystem::path file;  // that it was read from, as it was named; empty: a program made it
  /// What with_copies() has fetched, by its address: no key, as `from` and the others name the
  /// copies.
  std::map<std::string, stores::LocalCopy> copies;
  std::map<std::string, SourceLine> given;  // by key; by section, where the file has its first line

  /// The number of ranks: the product of mesh.shape, 1 without a mesh.
  std::int64_t ranks() const;
  /// Whether rows have labels: one, or one for each word.
  bool classifies() const { return train.objective == ObjectiveKind::classification || tags(); }
  bool tags() const { return train.objective == ObjectiveKind::token_classification; }
  /// Sequences of a row of the batch: of preferences, the two answers.
  std::int64_t row_sequences() const { return train.objective == ObjectiveKind::dpo ? 2 : 1; }
  /// Tokens of a step, on all ranks together.
  std::int64_t step_tokens() const { return train.batch * row_sequences() * data.seq_len; }
  /// Where the schedule of the learning rate ends, in its unit.
  std::int64_t schedule_end() const;
  /// "run.toml:12: mesh.shape": the beginning of an error's text about this key. Where it was not
  /// given, its section's line, or the file alone; of a program's own, the key alone.
  std::string place(const std::string& key) const;
  SourceLine place_of_key(const std::string& key) const;
};

/// All keys with their values as a JSON object, for records in checkpoints.
std::string to_json(const RunSpec& config);

}  // namespace tessera::runs
