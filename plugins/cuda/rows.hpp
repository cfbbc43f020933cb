// A kernel's view of tensors as rows. Include it after kernels.hpp.
#pragma once
#include <cstddef>
#include <string>

namespace tessera::cuda {

/// Builds the structure of a kernel of rows: the dims of `shape` in `along` make up a row, the
/// others count rows. Arrays are added in the kernel's order.
class Rows {
 public:
  Rows(const Dims& shape, const Dims& along);
  /// Every dim but the last counts rows.
  static Rows of_last_dim(const Dims& shape);

  /// An array of the whole shape; undefined: absent.
  Rows& whole(const Tensor& x);
  /// One whose first dim is the shape's last, before the others in their order; undefined: absent.
  Rows& turned(const Tensor& x);
  /// One element for each row; undefined: absent. With or without dims of 1 in the place of a
  /// row's.
  Rows& per_row(const Tensor& x);
  /// One row, which all share; undefined: absent. With or without dims of 1 in the place of the
  /// others.
  Rows& shared(const Tensor& x);
  Rows& number(double value);

  /// For kernels that know more of the array than its strides.
  Rows& integer(std::int64_t value);

  /// The structure, for kernels with one of their own around it.
  const RowArguments& finish();
  /// A block for each row.
  void launch_rows(const Tensor& on, const std::string& kernel);
  /// A thread for some rows.
  void launch_each_row(const Tensor& on, const std::string& kernel);
  /// So many blocks.
  void launch_blocks(const Tensor& on, const std::string& kernel, std::int64_t blocks);
  /// A block for 32 elements of a row; the kernel sums over the rows.
  void launch_columns(const Tensor& on, const std::string& kernel);

 private:
  RowArray& add(const Tensor& x);
  /// An array whose dim place(d) is dim d of the shape.
  Rows& placed(const Tensor& x, int (*place)(int dim, int dims));
  /// Joins dims that all arrays allow.
  void join(int& dims, std::int64_t* extents, std::int64_t* (*strides)(RowArray&));

  RowArguments arguments_ = {};
  Dims shape_;
  Dims along_;
  std::size_t arrays_ = 0;
  std::size_t numbers_ = 0;
  std::size_t integers_ = 0;
};

/// "softmax" -> "softmax_f32", for types that are computed in float, or "softmax_f64".
std::string with_type(const std::string& kernel, DType type);

}  // namespace tessera::cuda
