export module tessera.train:captures;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera {

/// Values of the host that decide how a step goes and are known before it: a flag, a stage, a
/// temperature that the body uses as a constant. Steps with other values get programs of their
/// own. The same on all ranks. (A value that is computed within the step: see guard().)
using StepGuards = std::map<std::string, double>;

/// What a program has in it of a module, besides values: a change of it needs another program.
struct ModuleForm {
  const nn::Module* module = nullptr;
  bool training = true;
  std::size_t hooks = 0;
  std::uint64_t held = 0;  // which parameters and buffers
};
using ModuleForms = std::vector<ModuleForm>;

}  // namespace tessera
