#pragma once
// Products of matrices whose rows do not depend on how many rows there are.

namespace tessera {

/// While one exists, each row of a float product that the calling thread asks for has the bits that
/// it has alone: sums have an order of their own, which costs time where there are many rows. For
/// products whose first operand is not transposed. May be nested.
class RowProducts {
 public:
  RowProducts();
  ~RowProducts();
  RowProducts(const RowProducts&) = delete;
  RowProducts& operator=(const RowProducts&) = delete;

  /// Whether the calling thread has one.
  static bool active();
};

}  // namespace tessera
