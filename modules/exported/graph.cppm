export module tessera.exported:graph;

import tessera.base;
import tessera.checkpoint;

export namespace tessera::exported {

/// What a value of a graph is.
enum class ValueKind : std::uint8_t { tensor, integer, real, boolean };

/// An input of a graph, or a result of one of its nodes.
struct GraphValue {
  std::string name;
  ValueKind kind = ValueKind::tensor;
  DType dtype = DType::f32;         // of a tensor
  std::vector<std::int64_t> shape;  // of a tensor; -1: symbolic
  /// Of a tensor, for each dim the symbol that it is ("s0"); empty: a number, or an expression.
  std::vector<std::string> symbols = {};
  bool requires_grad = false;  // of a tensor
};

/// An element of an argument: a value of the graph, or a constant.
struct ArgumentItem {
  int value = -1;  // the place in ExportedGraph::values; -1: a constant, or no tensor
  std::int64_t integer = 0;
  double real = 0;
};

/// An argument of a node.
struct Argument {
  enum class Kind : std::uint8_t {
    none,
    tensor,
    tensors,
    integer,
    integers,
    real,
    reals,
    boolean,
    booleans,
    dtype,  // the integer is a DType
    text,
    other  // has no effect here: a device, a layout, a memory format
  };
  Kind kind = Kind::none;
  std::vector<ArgumentItem> items = {};
  std::string text = {};
};

/// A call of one of a program's modules.
struct ModuleCall {
  int module = 0;  // the place in ExportedGraph::modules
  int call = 0;    // which of its calls
  friend bool operator==(const ModuleCall&, const ModuleCall&) = default;
};

/// A call of an operator of PyTorch.
struct GraphNode {
  std::string target;               // "aten.add.Tensor"
  int operator_index = 0;           // its row in the table of operators
  std::vector<Argument> arguments;  // in the order of that row, defaults included
  std::vector<int> results;         // values; -1: nobody uses it
  std::vector<ModuleCall> module;   // the calls that it is in, from the outside to the inside
};

/// What a graph's input is.
enum class InputRole : std::uint8_t { user, parameter, buffer, constant };

/// An input of a graph.
struct GraphInput {
  int value = -1;
  InputRole role = InputRole::user;
  std::string target = {};   // the qualified name of a parameter, buffer or constant
  bool saved = true;         // a buffer that state_dict() has
  std::string storage = {};  // two parameters with one are one parameter (tied weights)
};

/// A buffer that gets a new value at the end of each call.
struct BufferUpdate {
  int value = -1;
  std::string buffer;
};

/// A module of the program: its qualified name and its class, "LlamaDecoderLayer".
struct ExportedModule {
  std::string name;
  std::string kind;
};

/// The extents that a program was exported for, of all dims with one symbol.
struct DimRange {
  static constexpr std::int64_t unbounded = 0x7fff'ffff'ffff'ffff;
  std::int64_t low = 0;
  std::int64_t high = unbounded;
};

/// A program that torch.export has written, as data. Every operator in it is known.
struct ExportedGraph {
  std::string path;           // of its file
  std::string torch_version;  // that has written it
  std::vector<GraphValue> values;
  std::vector<GraphInput> inputs;
  std::vector<GraphNode> nodes;  // in the order of the program
  std::vector<int> outputs;      // values that the user gets
  std::vector<BufferUpdate> updates;
  std::vector<ExportedModule> modules;     // those that made nodes, each once
  std::map<std::string, DimRange> ranges;  // by symbol
};

/// The program in a file of torch.export (the format "pt2"). Errors (input), before memory of
/// tensors is taken: a newer schema; what is damaged; all at once, with their counts: operators,
/// types of elements and forms that are not known, control flow, inputs that are changed.
ExportedGraph read_exported_graph(const TensorSource& file);

/// What is in a program, for people, as rows of a name and a text: inputs with the ranges of their
/// dims, outputs, parameters, blocks, operators with their counts.
std::vector<std::pair<std::string, std::string>> described(const ExportedGraph& graph);

/// The names of all operators that such a program may have.
std::vector<std::string> exported_operators();

}  // namespace tessera::exported
