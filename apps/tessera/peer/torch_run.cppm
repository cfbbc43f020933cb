export module tessera.app.peer:torch_run;

import tessera.base;
import tessera.app.base;
import tessera.runs;
import tessera.app.run;

export namespace tessera::app {

/// How PyTorch distributes a model: FSDP2, DistributedDataParallel, or DTensor's styles.
enum class TorchLayout : std::uint8_t { one_rank, fully_sharded, replicated, tensor_parallel };
/// "fully_sharded".
std::string_view name_of(TorchLayout layout);

/// The layout of the run under PyTorch. Error (input) that lists all that the script
/// (train_with_torch.py) does not compute as the run does, each with its place in the config.
TorchLayout torch_layout(const runs::Run& run);

/// A PyTorch in an installation of Python.
class Torch {
 public:
  /// `python`: a path, or a name in PATH. Error (input): it cannot be started, or has no torch.
  explicit Torch(std::string python);
  const std::string& version() const { return version_; }

  /// Writes what the script reads into `folder`: the script, the run, the weights that it begins
  /// with, the rows of as many steps as there are learning rates. `layout`: torch_layout of the
  /// run. `compile`: with torch.compile.
  void write(const runs::Run& run, TorchLayout layout, const std::vector<double>& lr, bool compile,
             const std::string& folder) const;
  /// Trains on what write() has written. Errors: it fails; the end of its output is in the error.
  TrainedSteps train(const std::string& folder, std::int64_t ranks) const;

 private:
  std::string python_;
  std::string version_;
};

}  // namespace tessera::app
