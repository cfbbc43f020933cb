export module tessera.exported:language;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import :graph;
import :model;

export namespace tessera::exported {

/// What a program of the next token takes and returns: places among its inputs and outputs.
struct TokenProgram {
  int tokens = 0;          // the input of tokens [B, T], i64
  int mask = -1;           // an input of the same dims that gets ones; -1: none
  int targets = -1;        // an input of the same dims, for the program's own loss; -1: none
  int logits = 0;          // the output [B, T, vocab]
  int loss = -1;           // the output of one number: the mean loss of the targets; -1: none
  std::int64_t vocab = 0;  // of the logits
  DimRange rows = {};      // of a batch
  DimRange length = {};    // of sequences
};
/// Inputs: "input_ids" (or the only one), and where there are such "attention_mask" and "targets".
/// Outputs: one of logits, with "targets" one number, and what is not used. Error (input) that
/// names everything which is otherwise.
TokenProgram token_program(const ExportedGraph& graph);

/// What a program that tells classes of texts takes and returns.
struct ClassProgram {
  int tokens = 0;            // as of a TokenProgram
  int mask = -1;             // an input of the same dims: 1 of a text's tokens, 0 after its end
  int logits = 0;            // the output [B, classes]
  std::int64_t classes = 0;  // at least 2
  DimRange rows = {};
  DimRange length = {};
};
/// Inputs: "input_ids" (or the only one) and where there is one "attention_mask". Outputs: one of
/// logits, and what is not used. Error (input) that names everything which is otherwise.
ClassProgram class_program(const ExportedGraph& graph);

/// A program as a model of the next token. Its parameters have their names in the program.
class ExportedLanguageModel final : public nn::LanguageModel {
 public:
  /// On the meta device, as ExportedModel. Errors (input): see token_program; a module of the
  /// program is named "loss".
  ExportedLanguageModel(ExportedGraph graph, const TensorSource& file);
  ~ExportedLanguageModel() override;

  std::string_view kind() const override;
  /// Out of training, a batch of fewer rows than the program takes is filled with copies.
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;
  using LanguageModel::loss_sum;
  /// By the program's own loss where it has one: its mean times the number of trained targets.
  Tensor loss_sum(const Tensor& tokens, const Tensor& targets,
                  const nn::RowDocuments& documents) override;
  /// Error (input) with a cache: a program computes whole texts.
  void set_cache(nn::KeyValueCache* cache) override;
  void set_activation_checkpointing(bool enabled) override;

 private:
  /// All outputs of the program. `targets`: undefined where only logits are used.
  Tensors run(const Tensor& tokens, const Tensor& targets);

  std::unique_ptr<Program> program_;
  TokenProgram places_;
};

/// The family of all programs of the next token: model_type in the config.json of a checkpoint.
constexpr std::string_view program_family_name = "exported_program";
/// The size that is where the file is, an absolute path; the others say which program it is.
constexpr std::string_view program_file_size = "program_file";
/// The family. A model's sizes are its file, what identifies the program in it, and counts.
const models::ModelFamily& program_family();
/// What a config.json would say of the program in a file, as JSON. Errors (input): see
/// read_exported_graph and token_program.
std::string program_config(const std::string& path);
/// The same of a program that tells classes, of whose logits vocab_size is the number. Errors
/// (input): see class_program.
std::string class_program_config(const std::string& path);
/// Whether it is a file of torch.export, by its name.
bool is_program(const std::string& path);
/// Of a program's file what a model's weights are: parameters, and buffers that are saved.
std::unique_ptr<TensorSource> program_weights(std::unique_ptr<TensorSource> file);

}  // namespace tessera::exported
