export module tessera.app.commands:subcommands;

import tessera.tensor;
import tessera.collective;
import tessera.coded;
import tessera.app.base;
import tessera.text;
import tessera.evaluation;
import tessera.app.server;

// One function for each sub-command; each lives in the file of its name. They throw Error.

export namespace tessera::app {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;  // key=value
  std::vector<std::string> plugins;    // files or folders, besides plugins.paths
  bool dry_run = false;
  bool account = false;                     // prints the account of a step; a dry run
  collective::MachineOptions machine = {};  // this one among those of the run
  bool spare = false;                       // it waits until one of them is lost
};
using ErrorPrinter = std::function<void(const std::string&)>;
/// Errors are printed by `print`, by one rank only where another program started several, and
/// thrown as PeerFailed.
int run_train(const TrainArguments& arguments, const ErrorPrinter& print);

struct PlanArguments {
  std::int64_t ranks = 0;     // put the run on so many; 0: those of its mesh
  std::string hardware;       // a file; empty: this machine, measured
  std::string save_hardware;  // a file for what was measured of this machine; empty: none
  std::string trace;          // a file for the step as a trace; empty: none
  double tokens = 0;          // of a whole training; 0: those of the config's steps
  double failures = 0;        // of a rank in a year; 0: those of the hardware file
  std::string page;           // a file for it as HTML; empty: none
  std::string compare;        // a trace of such a run, to print beside it; empty: none
  bool json = false;
  bool search = false;                  // for the layout with the shortest step
  std::string save;                     // a file for its config; empty: none
  std::vector<std::string> precisions;  // that it may choose; empty: the config's
  int tries = 0;                        // candidates that it runs, the best ones
};
struct BenchCompareArguments {
  std::string python;  // with torch; a path, or a name in PATH
  std::int64_t steps = 20;
  int rounds = 3;
  bool compile = false;  // PyTorch's side, by torch.compile
  bool json = false;
};
struct BenchArguments {
  std::string what;  // gemm, kernels, device, dispatch, collectives, step, checkpoint, scale,
                     // tokenizer, generate or serve; empty: all
  bool json = false;
  int elements = 1 << 24;      // of a kernel's operand: 64 MiB, more than caches hold
  int ranks = 1024;            // of bench scale, at most
  std::string only;            // kernels with this in their name
  std::string device = "cpu";  // of bench device
  std::string tokenizer;       // a folder or file; empty: "bytes"
  std::string model;           // a checkpoint or folder; empty: a Llama with random weights
  coded::WeightForm precision = coded::WeightForm::stored;  // see text::ModelFiles
  coded::Activations activations = coded::Activations::f32;
  std::optional<DType> keys = std::nullopt;
};

struct CaptureArguments {
  std::string to;  // the file to write
  int rank = 0;
  std::string part;  // "first", "middle", "last" or "update"; empty: the whole step
};
/// `tessera graph capture`: the program of a step of such a run, without ranks. Errors as above; a
/// rank that the mesh does not have.
int run_graph_capture(const TrainArguments& arguments, const CaptureArguments& captured,
                      const ErrorPrinter& print);

/// The model that a command about texts reads and writes them with.
struct ModelArguments {
  std::string model;      // a checkpoint, or a folder in Hugging Face's format
  std::string tokenizer;  // a folder or file; empty: the model's own
  std::string base;       // of a checkpoint that names one; empty: where it says that it is
  std::string adapter;    // a folder of PEFT that is merged with the model's weights; empty: none
  coded::WeightForm precision = coded::WeightForm::stored;  // see text::ModelFiles
  coded::Activations activations = coded::Activations::f32;
  std::optional<DType> keys = std::nullopt;
  int ranks = 0;    // 0: as many as `context`
  int context = 1;  // ranks that each have a part of a text
  int split = 0;    // ranks that each have a part of every layer; 0: ranks / context
};

struct GenerateArguments : ModelArguments {
  std::string prompt;
  std::string prompts;  // a file of prompts, instead
  bool json = false;
  text::GenerationOptions options = {};
  text::EngineOptions engine = {};
};
/// `tessera generate`: the prompt and the text as it comes; or for a file of prompts, each with its
/// text. Errors (input): no prompt, or two kinds of them; those of use_model and generate.
int run_generate(const GenerateArguments& arguments);

struct ChatArguments : ModelArguments {
  std::string chat_template;  // a file; empty: the tokenizer's
  std::string system;         // the message of the system; empty: none
  text::GenerationOptions options = {};
  text::EngineOptions engine = {};
};
/// `tessera chat`: a question in each line of stdin, and its answer on stdout. Errors (input):
/// those of use_model and text::Chat; where stdin is a terminal those of text::Chat are printed,
/// and the next line is read.
int run_chat(const ChatArguments& arguments);

struct EvaluateArguments : ModelArguments {
  std::vector<std::string> text = {};                // files, for perplexity
  std::vector<std::string> jsonl = {};               // files of records, for perplexity
  std::vector<std::string> questions = {};           // files of questions
  std::vector<std::string> tasks = {};               // files of lm-evaluation-harness
  std::string task_data = {};                        // a folder with their documents
  std::int64_t limit = 0;                            // documents of a task at most; 0: all
  evaluation::TaskChat chat = {};                    // of tasks
  std::string system = {};                           // what comes before a task's description
  std::string keep = {};                             // a file for answers to tasks; empty: none
  std::vector<std::string> beside = {};              // files with results of other models
  std::optional<std::int64_t> shots = std::nullopt;  // none: a task's own, of questions 0
  std::string chat_template;  // of records and tasks; a file; empty: the tokenizer's
  text::PerplexityOptions perplexity = {};
  std::string shots_from;  // a file of questions; empty: the other questions
  text::QuestionOptions asked = {};
  bool json = false;
  std::string to;  // a file for the JSON
};
/// `tessera evaluate`: a table, or JSON. Errors (input): no file; those of use_model,
/// text_perplexity, record_perplexity, read_questions and ask.
int run_evaluate(const EvaluateArguments& arguments);

struct CompareArguments {
  std::string model;        // as of ModelArguments
  std::string stored;       // a safetensors file
  double tolerance = 1e-4;  // of the norm of a difference over that of the stored tensor
  bool json = false;
};
/// `tessera compare`: a model beside what another program has stored of it (compare_stored), in a
/// table that ends with the first difference, or JSON. Returns 1 if there is one, else 0. Errors
/// (input): those of text::TextModel, SafetensorsFile and compare_stored.
int run_compare(const CompareArguments& arguments);

struct ServeArguments : ModelArguments {
  ServeOptions options = {};
  std::string token_file;  // its first line is the token; empty: none
  bool heals = false;      // ranks that die are started again
};
/// `tessera serve`: prints the address, and answers until it is interrupted. Errors (input): those
/// of use_model, serve and read_token.
int run_serve(const ServeArguments& arguments);

struct DataShowArguments {
  int rows = 3;      // of the training, in its order
  std::string html;  // a file to write; empty: text on stdout
};
/// `tessera data show`: rows as tokens with ids; those whose loss counts are in {braces}, and green
/// in a terminal. Errors (input): those of a run's data.
int run_data_show(const TrainArguments& arguments, const DataShowArguments& shown);
/// `tessera data check`: reads all data, and prints counts. Errors (input): the same.
int run_data_check(const TrainArguments& arguments);

/// A run that has saved checkpoints, and what is asked of it.
struct QuestionArguments {
  std::string run;  // the folder of its checkpoints
  std::vector<std::string> plugins = {};
  std::int64_t step = 0;
  std::string place = {};  // of a row, "a.jsonl:17"
  bool rows = false;
  bool modules = false;
  std::string layout = {};  // a config; empty: the run's own
  std::string html = {};    // a file to write; empty: none
  bool json = false;
  // Of a replay whose calls are recorded.
  std::string record = {};  // a folder; empty: they are not
  std::int64_t record_from = 0;
  std::string record_as = "executed";
  std::vector<std::int64_t> record_values = {};  // a rank and a call's number; empty: none
  bool from_beginning = false;
  bool captured = false;
  std::string device = {};
};
/// `tessera data where`: the rows of a step, by ranks and micro-batches. Errors (input): those of
/// runs::open_recorded, open_task and check_step.
int run_data_where(const QuestionArguments& arguments);
/// `tessera data seen`: the steps that have a row. Errors (input): as above; no row has the place.
int run_data_seen(const QuestionArguments& arguments);
/// `tessera replay`: computes a step again. Returns 1 where its loss or norm is not what the run
/// has recorded, else 0. Errors (input): those of runs::open_replay.
int run_replay(const QuestionArguments& arguments);

struct VerifyArguments {
  std::string folder;  // of a run, of its checkpoints, a checkpoint, or an export
  std::vector<std::string> plugins = {};
  std::string steps = {};      // "400:420"; empty: all
  std::string layout = {};     // a config; empty: the run's own
  std::string seen_from = {};  // where relative paths of an export's data are; empty: here
  bool json = false;
};
/// `tessera verify`: repeats a run from its record, or some steps of it. Returns 1 where something
/// is not the same in all bits, else 0. Errors (input): those of runs::plan_verification and
/// runs::open_segment.
int run_verify(const VerifyArguments& arguments);
/// Two runs, or two ways to compute a step of one run.
struct BisectArguments {
  std::string first;        // the folder of a run's checkpoints
  std::string second = {};  // empty: the first run again
  std::vector<std::string> plugins = {};
  std::int64_t step = 0;           // 0: the first one that differs; of one run, the last one
  std::string other_program = {};  // that computes the second; empty: this one
  std::string layout = {};         // a config, by which the second is computed
  std::string device = {};         // on which the second is computed, and the first on the CPU
  std::string against = {};        // "eager": the first as written, the second as captured
  std::optional<double> tolerance = {};
  std::string keep = {};  // a new folder for the recordings; empty: they are removed
  bool json = false;
};
/// `tessera bisect`: names the first call of an operator whose result differs. Returns 0 where
/// nothing differs, and 1 where something does. Errors (input): those of runs::describe_run,
/// check_one_config, compare_metrics and of the replays.
int run_bisect(const BisectArguments& arguments);

int run_checkpoint_info(const std::string& path, bool json);
/// Compares all bytes of a checkpoint, or of every checkpoint in a folder of them, with their
/// hashes. Error (input) that lists all damage.
int run_checkpoint_verify(const std::string& path);

struct ExportArguments {
  std::string checkpoint;  // or a model folder or a GGUF file
  std::string base;        // see ModelArguments
  std::string merged;      // a folder of PEFT that is merged with a model folder; empty: none
  std::string folder;      // must not exist, or be empty
  std::string dtype;       // float32, bfloat16...; empty: that of the model
  bool gguf = false;       // the one file model.gguf instead, for llama.cpp and others
  std::uint64_t max_file_bytes = 5'000'000'000;  // 0: one file
  bool adapter = false;                          // only the updates, in PEFT's format
  bool no_tokenizer = false;                     // else it is an error that there is none to write
};
/// Writes config.json, generation_config.json, the weights and the files of the tokenizer as
/// transformers reads them, or model.gguf with all of it: all of them or none. Updates are
/// merged with the weights; or, with `adapter`, they alone are written as PEFT reads them.
int run_checkpoint_export(const ExportArguments& arguments);
/// The same without printing: what there is to say of it.
std::string export_checkpoint(const ExportArguments& arguments);

struct ConvertArguments {
  std::string from;
  std::string to;                                // must not exist, or be empty
  std::string format;                            // the name of a CheckpointFormat
  std::uint64_t max_file_bytes = 5'000'000'000;  // of safetensors; 0: one file
};
/// Writes the tensors of a checkpoint or model folder in another format.
int run_checkpoint_convert(const ConvertArguments& arguments);

struct DiffArguments {
  std::string first;
  std::string second;
  std::string base;  // of both, see ModelArguments
  bool json = false;
};
/// Lists the tensors that differ. Returns 1 when there are any.
int run_checkpoint_diff(const DiffArguments& arguments);

struct LayoutArguments {
  std::string placements;  // "[Shard(0), Replicate]"
  std::string to;          // another layout, or empty
  std::string mesh;        // "2x2" or "shard=2,tensor=2"
  std::string shape;       // "8x6"
  int element_size = 4;    // bytes
  std::string svg;         // a file to write, or empty
};
int run_layout(const LayoutArguments& arguments);

struct PipelineArguments {
  std::string schedule;  // a kind, or a file
  std::optional<int> ranks;
  std::optional<int> stages_per_rank;
  std::optional<int> micro_batches;
  // Of one micro-batch in all of a rank's stages, and of a message; in any unit of time.
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double transfer = 0;
  std::string times;  // a trace whose times are taken instead, but for transfers; empty: none
  std::string svg;    // a file to write; empty: none
  std::string table;  // the same, for the schedule as text
};
/// `tessera pipeline draw`. Errors (input): those of make_schedule, parse_schedule, check and
/// stage_times; sizes with a file; a trace of other stages, or of whole backwards for a schedule of
/// halves.
int run_pipeline_draw(const PipelineArguments& arguments);

int run_doctor();

/// `tessera trace summary`. Errors (input): the file is not a trace, or is damaged.
int run_trace_summary(const std::string& file);
/// `tessera trace draw`: an SVG. Errors (input): the same; the picture cannot be written.
int run_trace_draw(const std::string& file, const std::string& to);

/// `tessera blackbox`. Errors (input): see black_box_text.
int run_blackbox(const std::vector<std::string>& paths);

struct GraphShowOptions {
  std::string module;  // only this part of the model; empty: all
  int depth = 3;       // parts of a module's name that are told apart
  bool all = false;    // the instructions instead of a table
  bool json = false;
};
/// `tessera graph show`. Errors (input): the file is not a program, or is damaged; no instruction
/// is of this module.
int run_graph_show(const std::string& file, const GraphShowOptions& options);
/// `tessera graph diff`: 1 where the programs differ. Errors (input): as above.
int run_graph_diff(const std::string& before, const std::string& after);

/// `tessera graph draw`. Errors (input): as above; the picture cannot be written.
int run_graph_draw(const std::string& file, const std::string& to);

/// `tessera graph stats`. Errors (input): the file is not a program, or is damaged.
int run_graph_stats(const std::string& file);

struct RooflineOptions {
  DeviceRates rates = {};
  double link = 350e9;               // bytes that arrive from other ranks in a second
  double memory = 76.0 * (1 << 30);  // bytes of the device
  std::string device = {};           // on which kernels are measured; empty: on none
  bool json = false;
};
struct OpsArguments {
  std::string name;    // of an operator; empty: all of them
  std::string values;  // its arguments, "dim=1, keepdim=true"; empty: zeros
};
/// `tessera ops`: what operators say of themselves. Errors (input): no operator has the name, the
/// arguments do not fit.
int run_ops(const OpsArguments& arguments);

/// `tessera runs`: a table of the runs whose metrics files are in a folder or below it. Error
/// (input): there is none.
int run_runs(const std::string& folder, bool json);

struct PlotArguments {
  std::vector<std::string> runs;  // metrics files, or folders with one
  std::string metric = "loss";
  int average = 1;  // of so many steps is each point the mean
  std::string svg;  // also a picture in this file; empty: none
};
/// `tessera plot`: curves of several runs in one picture, by gnuplot. Errors (input): a run has no
/// metrics file, or several; gnuplot is not installed.
int run_plot(const PlotArguments& arguments);

/// `tessera keys`: the reference of the config, as docs/config.md has it.
int run_keys();

}  // namespace tessera::app
