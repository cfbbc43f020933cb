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
inline constexpr std::string_view untyped_storage = "torch.storage UntypedStorage";

/// All types, in the order of DType.
inline constexpr std::array<TorchType, dtype_count> torch_types = {
    {{"torch float32", "torch FloatStorage", DType::f32},
     {"torch float64", "torch DoubleStorage", DType::f64},
     {"torch bfloat16", "torch BFloat16Storage", DType::bf16},
     {"torch float16", "torch HalfStorage", DType::f16},
     {"torch int64", "torch LongStorage", DType::i64},
     {"torch int32", "torch IntStorage", DType::i32},
     {"torch uint8", "torch ByteStorage", DType::u8},
     {"torch bool", "torch BoolStorage", DType::boolean},
     {"torch int8", "torch CharStorage", DType::i8},
     {"torch float8_e4m3fn", untyped_storage, DType::f8e4m3},
     {"torch float8_e5m2", untyped_storage, DType::f8e5m2}}};

static_assert([] {
  for (std::size_t i = 0; i < torch_types.size(); ++i) {
    if (torch_types[i].dtype.empty() || static_cast<std::size_t>(torch_types[i].type) != i) {
      return false;
    }
  }
  return true;
}());

inline constexpr const TorchType& torch_type(DType type) {
  return torch_types[static_cast<std::size_t>(type)];
}

}  // namespace tessera::checkpoint_detail
