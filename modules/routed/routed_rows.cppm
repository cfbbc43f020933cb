module tessera.routed:routed_rows;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :expert_layer;

namespace tessera::routed {

/// The ranks that share the experts, how many there are, and the names of their mesh axes.
struct Owners {
  std::optional<ops::GroupArgument> group = std::nullopt;
  std::int64_t count = 1;
  std::string axis = {};  // the mesh's
};

/// Experts on this rank's tensors. Shapes: N tokens, P experts per token, C features of the model,
/// E experts of all owners, O owners.
class LocalExperts {
 public:
  struct Options {
    std::int64_t experts = 0;  // of all owners
    Owners owners = {};
    bool adds_bias = true;  // this rank adds the bias of the result
  };

  /// Both outlive this. `layer`: with this rank's matrices and biases.
  LocalExperts(const ExpertLayer& layer, Options options, const BesideExperts& beside)
      : layer_(layer), options_(std::move(options)), beside_(beside) {}

  Tensor result(const RoutedRows& in) const;

 private:
  /// How many of this rank's rows each expert gets, [experts]; and on their way, where there are
  /// several owners, those that each of them sends to this rank's experts.
  struct Counts {
    Tensor own;
    ops::PendingTensor arriving = {};
  };

  Tensor rows_of_none(const Tensor& chosen, const Tensor& kept) const;
  Tensor feed_forward(const Tensor& rows, const Tensor& counts, std::int64_t expected) const;
  Tensor exchanged(const Tensor& rows, Counts& counts, std::int64_t per_token) const;

  const ExpertLayer& layer_;
  Options options_;
  const BesideExperts& beside_;
};

}  // namespace tessera::routed
