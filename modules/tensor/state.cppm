export module tessera.tensor:state;

import tessera.base;
import :value;

export namespace tessera {

/// Content of a checkpoint: names -> tensors (distributed ones by their shards) and scalars.
struct StateDict {
  using Scalar = std::variant<std::int64_t, double, std::string>;
  std::map<std::string, Tensor> tensors;
  std::map<std::string, Scalar> scalars;

  /// Adds all of `other` under "prefix.". Errors: a name that exists.
  void merge(const std::string& prefix, const StateDict& other);
  /// The entries under "prefix.", without it.
  StateDict part(const std::string& prefix) const;
};

}  // namespace tessera
