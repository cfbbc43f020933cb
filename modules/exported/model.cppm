export module tessera.exported:model;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;
import :graph;

export namespace tessera::exported {

class Program;

/// A program as a model: its modules have their names and classes there, its parameters and buffers
/// are under their names, and forward computes it node by node. A module's nodes are computed in a
/// call of that module, so its hooks run.
class ExportedModel : public nn::Module {
 public:
  /// On the meta device. Buffers and constants get their values of `file`, at once; parameters
  /// by `load`, or at random. Errors (input): a tensor of the program is missing in the file.
  ExportedModel(ExportedGraph graph, const TensorSource& file);
  ~ExportedModel() override;

  std::string_view kind() const override;
  /// The program's inputs that are tensors -> its outputs. Errors (input): a shape or type that the
  /// program was not exported for.
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// Gives the parameters, which have memory, their values of the program's file.
  void load(const TensorSource& file);
  /// Modules in lists (names that end with a number), the outermost ones, which repeat.
  std::vector<std::string> blocks() const;
  /// Each block recomputes its activations in backward instead of saving them.
  void set_activation_checkpointing(bool enabled);

 private:
  std::unique_ptr<Program> program_;
};

/// The model of a file of torch.export in memory of `device`, with its weights. Errors (input): see
/// read_exported_graph.
std::shared_ptr<ExportedModel> load_exported(const std::string& path, Device device = cpu);

}  // namespace tessera::exported
