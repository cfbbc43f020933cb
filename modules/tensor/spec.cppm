export module tessera.tensor:spec;

import tessera.base;
import tessera.mesh;
import tessera.placement;

export namespace tessera {

class Spec;
/// Keeps a Spec. What holds one for longer than a call holds it by this.
using SpecHandle = IntrusivePointer<const Spec>;

/// A distributed tensor without its bytes: shape, type, layout. Interned: two specs are equal
/// exactly when their addresses are. A Spec lives as long as something holds it, and a while
/// longer.
class Spec {
 public:
  const Layout layout;
  const Dims shape;  // global
  const DType dtype;

  static SpecHandle make(const Layout& layout, const Dims& shape, DType dtype);
  /// Reads text_of's form. Errors (input): the text has another form.
  static SpecHandle parse(std::string_view text);
  /// How many Specs the process keeps. make() drops those that nothing holds when there are 4,096,
  /// and then each time when there are twice as many as were held at the last time.
  static std::size_t kept();

  Spec(const Spec&) = delete;
  Spec& operator=(const Spec&) = delete;

  /// A handle of a Spec that something holds.
  inline SpecHandle handle() const {
    retain();
    return SpecHandle(this);
  }
  inline void retain() const { __atomic_fetch_add(&holders_, 1, __ATOMIC_RELAXED); }
  /// Frees nothing: make() does.
  inline void release() const { __atomic_fetch_sub(&holders_, 1, __ATOMIC_RELEASE); }

 private:
  inline Spec(const Layout& l, const Dims& s, DType d) : layout(l), shape(s), dtype(d) {}
  inline bool is_held() const { return __atomic_load_n(&holders_, __ATOMIC_ACQUIRE) != 0; }

  mutable int holders_ = 0;
};

/// Shape and global offset of the calling rank's part of a tensor. Errors: the rank is not in the
/// mesh.
Dims local_shape(const Spec& spec);
Dims local_offset(const Spec& spec);
/// The calling rank's coordinates on the mesh. Errors: the rank is not in the mesh.
Dims my_coordinates(const DeviceMesh& mesh);

/// "f32[8, 4] [Shard(0), Replicate]", for errors.
std::string to_string(const Spec& spec);
/// "f32[8, 4] [Shard(0), Replicate] on mesh(shard=2, tensor=2)": all of the spec, for other
/// processes.
std::string text_of(const Spec& spec);

}  // namespace tessera
