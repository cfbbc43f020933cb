export module tessera.tensor:spec;

import tessera.base;
import tessera.mesh;
import tessera.placement;

export namespace tessera {

/// What a distributed tensor is besides its bytes. Interned for the life of the process: two specs
/// are equal exactly when their addresses are.
struct Spec {
  Layout layout;
  Dims shape;  // global
  DType dtype;

  static const Spec* make(const Layout& layout, const Dims& shape, DType dtype);
  /// Reads text_of's form. Errors (input): the text has another form.
  static const Spec* parse(std::string_view text);
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
