export module tessera.nn:pieces;

import tessera.base;
import tessera.tensor;
import :parameter;
import :tree;

// A model as a chain of pieces, some of which other ranks compute.

export namespace tessera::nn {

/// Pieces `first` to `last` - 1 of a model's chain (see LanguageModel::pieces).
struct PieceRange {
  static constexpr std::size_t end = static_cast<std::size_t>(-1);
  std::size_t first = 0;
  std::size_t last = end;  // `end`: with all that follow, and what comes after the chain

  bool begins() const { return first == 0; }
  bool ends() const { return last == end; }
  friend bool operator==(const PieceRange&, const PieceRange&) = default;
};

/// The blocks of a chain that has one piece before them.
std::span<const Child> blocks_in(std::span<const Child> blocks, PieceRange pieces);

/// Has the place of a module that other ranks compute: without parameters, and a call of it is an
/// error. It keeps the module, which is on the meta device, for what follows from the whole model:
/// the numbers that first values are drawn from, names.
class AbsentModule final : public Module {
 public:
  explicit AbsentModule(std::shared_ptr<Module> module) : module_(std::move(module)) {}
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  Module& module() const { return *module_; }

 private:
  std::shared_ptr<Module> module_;
};

/// Puts an AbsentModule in the place of each module of these names. Before a plan is applied.
/// Errors: see Module::replace_child; there is no module of a name.
void make_absent(Module& root, std::span<const std::string> names);
/// The names of modules that are absent below `root`.
std::vector<std::string> absent_modules(Module& root);
/// All modules of the whole model, in the order of the tree: in the place of an absent module, the
/// module that it keeps, with those inside, on the meta device.
struct WholeModule {
  Module* module = nullptr;
  bool absent = false;
};
std::vector<WholeModule> whole_modules(Module& root);
/// The parameters of the whole model, with those of absent modules, in the order of the tree.
std::vector<ParameterPointer> whole_parameters(Module& root);

}  // namespace tessera::nn
