module;
#include <tessera/dtype.hpp>
export module tessera.base:dtype;

import :standard;

export namespace tessera {

// Declared in tessera/dtype.hpp, which the kernels include too.
using tessera::all_bits;
using tessera::DType;
using tessera::dtype_count;
using tessera::dtype_facts;
using tessera::DTypeClass;
using tessera::DTypeFacts;
using tessera::facts_of;
using tessera::is_floating;
using tessera::is_stored_only;
using tessera::size_of;
using tessera::torch_untyped_storage;

/// "f32", "bf16", "i64", ...
std::string_view name_of(DType dtype);
/// The type of such a name; none: there is no such type.
std::optional<DType> dtype_from_name(std::string_view name);

/// The type of a binary operation on two tensors, as torch promotes: floating wins over integral,
/// then the wider; bf16 with f16 gives f32. Errors: a type that is only stored, with another one.
DType promote(DType a, DType b);

}  // namespace tessera
