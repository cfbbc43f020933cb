export module tessera.ops:element_code;

import tessera.base;

/// Needs of code that is generated from Op::element, to have the bits of the operators' kernels.
export namespace tessera::ops {

/// A header that generated code includes.
struct SourceFile {
  std::string_view path;
  std::string_view text;
};
/// Headers, by the paths by which they include each other; "pointwise/kernels/elements.hpp" is the
/// one to include.
std::span<const SourceFile> element_headers();
/// The compiler's options for the instruction set that the kernels use on this machine.
std::string element_options();

}  // namespace tessera::ops
