export module tessera.tensor:value;

import tessera.base;
import tessera.placement;
import tessera.device;
import :storage;
import :spec;

export namespace tessera {

/// Autograd's state of a tensor; the autograd module derives from it.
class AutogradState {
 public:
  virtual ~AutogradState();
  /// Whether the tensor was computed from others that need gradients: it is not a leaf.
  virtual bool is_computed() const = 0;
};

/// Reasons why the dispatcher may not call a kernel at once.
enum DispatchKey : std::uint8_t {
  requires_grad_key = 1,
  distributed_key = 2,
  meta_key = 4,
  /// The result of a view whose operand was redistributed for it: a copy where a view was meant, so
  /// a write to it would be lost. Views of it have it too.
  copied_view_key = 8,
  /// Contiguous from its creation on: shape and strides need not be looked at. A contiguous tensor
  /// may lack it.
  dense_key = 16,
  /// The kind of device whose memory it has, from bit 5 on; 0: the CPU (or meta).
  device_keys = 0xe0
};
inline constexpr int device_key_shift = 5;
/// A tensor's keys that follow from its device.
inline std::uint8_t key_of(Device device) {
  return device.type == DeviceType::meta
             ? static_cast<std::uint8_t>(meta_key)
             : static_cast<std::uint8_t>(static_cast<std::uint8_t>(device.type)
                                         << device_key_shift);
}

class Tensor;
struct TensorImpl;

/// The element type of a C++ type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::u8> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<DType, DType::i8> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::boolean> {};

/// An n-d array: strided (bytes here), distributed (a local tensor and a Spec), or meta (no bytes).
/// A cheap value: copies share the data. shape() of a distributed tensor is the global shape. Every
/// accessor of an undefined tensor is an error, except defined(), same_as() and impl().
class Tensor {
 public:
  Tensor() = default;  // undefined: an operand that is absent
  inline explicit Tensor(IntrusivePointer<TensorImpl> impl) : impl_(std::move(impl)) {}

  inline explicit operator bool() const { return static_cast<bool>(impl_); }
  inline bool defined() const { return static_cast<bool>(impl_); }
  inline bool same_as(const Tensor& other) const { return impl_ == other.impl_; }
  inline TensorImpl* impl() const { return impl_.get(); }

  inline const Dims& shape() const;
  inline int dims() const;
  inline std::int64_t size(std::int64_t dim) const;
  inline std::int64_t numel() const;
  inline DType dtype() const;
  inline Device device() const;
  inline bool is_distributed() const;
  inline bool is_meta() const;

  // Strided tensors only; each is an error on a distributed one, which names to_local().
  const Dims& strides() const;
  std::int64_t offset() const;
  inline bool is_contiguous() const;
  /// The first element's address on the host, not checked against T's width: for kernels. Null for
  /// meta tensors. Error: the memory is a device's; to_device(x, cpu) copies it.
  void* raw_data() const;
  /// The first element's address in its device's memory, for that device's kernels.
  void* device_address() const;
  /// The data with the element type checked.
  template <class T>
  inline T* data() const {
    check_type(DTypeOf<T>::value);
    return static_cast<T*>(raw_data());
  }
  Storage& storage() const;

  // Distributed tensors only.
  /// The interned description; null for a tensor that is not distributed.
  inline const SpecHandle& spec() const&;
  inline SpecHandle spec() const&&;
  /// The local part, without the gradient's path (dtensor's to_local() keeps it).
  const Tensor& local() const;
  Layout layout() const;

  /// Whether gradients flow to or through this tensor.
  inline bool requires_grad() const;
  /// Whether this leaf gets gradients. A leaf that is frozen (false) after a computation has used
  /// it gets none from the backward of that computation either, and its hooks do not run; they are
  /// kept for the case that it is changed back. Errors: true for a type that is not floating; false
  /// for a tensor that was computed.
  Tensor& set_requires_grad(bool value = true);
  /// The gradient of a leaf, or undefined. (Filled by autograd's backward.)
  Tensor& grad() const;

  /// The single element of a strided tensor of one element, as double; waits for the device that
  /// has it. Errors: more elements, distributed.
  double item() const;

 private:
  void check_type(DType wanted) const;

  /// is_contiguous() of a tensor that was not contiguous from its creation on.
  bool lies_contiguous() const;
  /// Error: the tensor is undefined.
  inline TensorImpl& get() const {
    if (!impl_) [[unlikely]] {
      undefined();
    }
    return *impl_;
  }
  [[noreturn]] static void undefined();

  IntrusivePointer<TensorImpl> impl_;
};

/// This rank's part of a distributed tensor; a plain one as it is.
inline const Tensor& local_of(const Tensor& x) { return x.is_distributed() ? x.local() : x; }

/// Contents of a tensor, which its copies share.
struct TensorImpl {
  IntrusivePointer<Storage> storage;
  std::int64_t offset = 0;  // elements
  Dims shape;
  Dims strides;  // elements; unused when distributed
  DType dtype = DType::f32;
  Device device;
  std::uint8_t keys = 0;
  SpecHandle spec;
  Tensor local;
  Tensor grad;
  std::unique_ptr<AutogradState> autograd;
  int references = 1;

  inline void retain() { __atomic_fetch_add(&references, 1, __ATOMIC_RELAXED); }
  inline void release() {
    if (__atomic_fetch_sub(&references, 1, __ATOMIC_ACQ_REL) == 1) {
      destroy();
    }
  }
  void destroy();
};

inline const Dims& Tensor::shape() const { return get().shape; }
inline int Tensor::dims() const { return get().shape.size(); }
inline std::int64_t Tensor::size(std::int64_t dim) const {
  return get()
      .shape[dim >= 0 && dim < dims() ? static_cast<int>(dim) : wrap_dim(dim, dims(), "size")];
}
inline std::int64_t Tensor::numel() const { return get().shape.product(); }
inline DType Tensor::dtype() const { return get().dtype; }
inline Device Tensor::device() const { return get().device; }
inline bool Tensor::is_distributed() const { return (get().keys & distributed_key) != 0; }
inline bool Tensor::is_meta() const { return (get().keys & meta_key) != 0; }
inline const SpecHandle& Tensor::spec() const& { return get().spec; }
inline SpecHandle Tensor::spec() const&& { return get().spec; }
inline bool Tensor::is_contiguous() const {
  return (get().keys & dense_key) != 0 || lies_contiguous();
}
inline bool Tensor::requires_grad() const { return (get().keys & requires_grad_key) != 0; }

/// Operands and results of an operator.
using Tensors = InlineVector<Tensor, 2>;

/// A strided tensor with fresh, uninitialised, contiguous memory of the device, for its current
/// stream (none on the meta device). `what`
/// begins the error's text. Errors: a negative extent; more bytes than can be addressed.
Tensor empty(const Dims& shape, DType dtype = DType::f32, Device device = cpu,
             std::string_view what = "empty");
Tensor zeros(const Dims& shape, DType dtype = DType::f32, Device device = cpu);
/// Every element is `value`, rounded to the type. Error (input): an integer type does not have it.
Tensor full(const Dims& shape, double value, DType dtype = DType::f32, Device device = cpu);
/// A copy of `values` in the given shape. On the meta device only modes see the values, as
/// Action::values. Errors: the product of `shape` is not values.size(); a device that is neither
/// the CPU nor meta.
template <class T>
Tensor from_values(std::span<const T> values, const Dims& shape, Device device = cpu);
template <class T>
inline Tensor from_values(std::initializer_list<T> values, const Dims& shape) {
  return from_values(std::span<const T>(values.begin(), values.size()), shape);
}
/// A tensor over `storage`: shape and strides in elements from `offset`.
Tensor from_storage(IntrusivePointer<Storage> storage, const Dims& shape, const Dims& strides,
                    std::int64_t offset, DType dtype, Device device = cpu);
/// A contiguous tensor over memory that something else owns; `keep_alive` is held with it.
Tensor from_memory(void* data, const Dims& shape, DType dtype,
                   std::shared_ptr<void> keep_alive = nullptr);

/// Another view of the same bytes, without any gradient's path: new shape, strides and offset
/// (strided only).
Tensor alias(const Tensor& x, const Dims& shape, const Dims& strides, std::int64_t offset);
/// The value without a gradient's path; shares the data.
Tensor detached(const Tensor& x);
/// x, a copy where a view was meant: writing it is an error (see copied_view_key).
void set_copied_view(const Tensor& x);
/// A distributed tensor with this local part. The local shape is not checked; dtensor's
/// from_local() checks it.
Tensor make_distributed(Tensor local, const SpecHandle& spec);
/// The values in row-major order as doubles, of a strided tensor: for tests, printing and small
/// decisions. Waits for the device that has them.
std::vector<double> to_doubles(const Tensor& x);
/// Shape, type, layout and the first values.
std::string to_string(const Tensor& x);

}  // namespace tessera
