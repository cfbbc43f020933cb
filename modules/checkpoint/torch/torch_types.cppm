// PyTorch's names of element types.
module tessera.checkpoint:torch_types;

import tessera.base;

namespace tessera::checkpoint_detail {

struct TorchType {
  std::string_view dtype;    // as a pickle names it
  std::string_view storage;  // of the tensor's bytes
  DType type;
};

/// Storage of types that are newer than typed storages: _rebuild_tensor_v3 then has the type, after
/// the hooks.
inline constexpr std::string_view untyped_storage = torch_untyped_storage;

/// All types, in the order of DType.
inline constexpr std::array<TorchType, dtype_count> torch_types = [] {
  std::array<TorchType, dtype_count> all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = {dtype_facts[i].torch, dtype_facts[i].torch_storage, static_cast<DType>(i)};
  }
  return all;
}();

inline constexpr const TorchType& torch_type(DType type) {
  return torch_types[static_cast<std::size_t>(type)];
}

}  // namespace tessera::checkpoint_detail
