// A graph divided into calls of its modules, and how it is computed.
module tessera.exported:program;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;
import :aten;
import :graph;

namespace tessera::exported {

struct Segment;

/// A node, or the call of a module.
struct ProgramStep {
  int node = -1;
  std::unique_ptr<Segment> call = {};
  std::vector<int> drop = {};  // slots that nobody reads afterwards
};

/// Where a value is inside and outside of a segment.
struct PassedValue {
  int inside = 0;
  int outside = 0;
};

/// The nodes of one call of a module. Its values are in slots of its own.
struct Segment {
  nn::Module* module = nullptr;
  std::vector<ProgramStep> steps = {};
  int slots = 0;
  std::vector<PassedValue> tensors_in = {};
  std::vector<PassedValue> numbers_in = {};
  std::vector<PassedValue> tensors_out = {};
  std::vector<PassedValue> numbers_out = {};
  std::vector<std::pair<int, nn::ParameterPointer>> parameters = {};
  std::vector<std::pair<int, nn::BufferPointer>> buffers = {};
  bool recompute = false;  // backward computes it again
};

/// A module of a program: it holds parameters, buffers and modules, and is called with the nodes of
/// its segment.
class ExportedPart final : public nn::Module {
 public:
  explicit ExportedPart(std::string kind) : kind_(std::move(kind)) {}
  std::string_view kind() const override { return kind_; }
  Tensors forward(const Tensors& inputs) override;

  using Module::add_buffer;
  using Module::add_parameter;
  using Module::attach;

 private:
  std::string kind_;
};

/// The extents of a symbol's dims.
DimRange range_of(const ExportedGraph& graph, const std::string& symbol);
/// A tensor's type and dims, "i64[s0 (2 to 64), 16]"; ? is a dim of another expression.
std::string type_text(const ExportedGraph& graph, const GraphValue& value);
/// Modules in lists (names that end with a number), the outermost ones, which repeat.
std::vector<std::string> blocks_of(const ExportedGraph& graph);

/// A program with its modules.
class Program {
 public:
  explicit Program(ExportedGraph graph);

  /// Makes the modules, parameters and buffers below `root`, which holds those without a module.
  void build(nn::Module& root, const TensorSource& file);
  /// Divides the nodes; `root` is the module that computes what is in no other one.
  void divide(nn::Module& root);
  Tensors run(const Tensors& inputs, bool training);

  const ExportedGraph& graph() const { return graph_; }
  std::vector<std::string> input_names() const;

  /// Whether blocks recompute their activations in backward.
  void set_recompute(bool enabled);

 private:
  friend class Divider;
  void build_parts(const TensorSource& file);
  std::shared_ptr<ExportedPart> part(const std::string& name);
  void add_tensor(const GraphInput& input, const TensorSource& file);
  void check_inputs(const Tensors& inputs) const;
  std::vector<RunValue> compute(const Segment& segment, std::vector<RunValue> values, Device device,
                                bool training) const;
  void call(const Segment& segment, std::vector<RunValue>& values, Device device,
            bool training) const;

  ExportedGraph graph_;
  std::map<std::string, std::shared_ptr<ExportedPart>> parts_;  // by name; "": the root
  std::map<std::string, std::string> kinds_;                    // of modules, by name
  std::map<std::string, nn::ParameterPointer> stored_;          // by where the file has them
  std::map<int, nn::ParameterPointer> parameters_;              // by value
  std::map<int, nn::BufferPointer> buffers_;                    // by value
  std::map<std::string, nn::BufferPointer> buffers_by_name_;
  Segment root_;
};

}  // namespace tessera::exported
