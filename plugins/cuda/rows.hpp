// A kernel's view of tensors as rows. Include it after kernels.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
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
  /// One element for each row, or one for all; undefined: absent. With or without dims of 1 in the
  /// place of a row's.
  Rows& per_row(const Tensor& x);
  /// One row, which all share; undefined: absent. With or without dims of 1 in the place of the
  /// others.
  Rows& shared(const Tensor& x);
  /// Memory of the call, as the kernel uses it.
  Rows& memory(void* data);
  Rows& number(double value);

  /// For kernels that know more of the array than its strides.
  Rows& integer(std::int64_t value);

  /// The structure, for kernels with one of their own around it.
  const RowArguments& finish();
  /// Whether all arrays that have elements along a row have the first one's type, one of f32, bf16
  /// and f16, and rows that are contiguous, begin at multiples of 16 bytes and follow by one
  /// stride.
  bool has_pieces();
  /// The same, wherever the rows begin.
  bool are_contiguous();
  /// A block for each row.
  void launch_rows(const Tensor& on, const std::string& kernel);
  /// A thread for some rows.
  void launch_each_row(const Tensor& on, const std::string& kernel);
  /// A team of threads for each row, or for each of `teams`: NAME_pieces_TYPE, where a row is in
  /// the team's registers, `pieces` of 16 bytes a thread, else NAME_f32 or NAME_f64. Returns which.
  bool launch_teams(const Tensor& on, const std::string& name, int pieces, std::int64_t teams = 0);
  /// A block for each row, which it reads once: NAME_pieces_TYPE, where rows are contiguous, else
  /// NAME_f32 or NAME_f64.
  void launch_long_rows(const Tensor& on, const std::string& name);
  /// So many blocks.
  void launch_blocks(const Tensor& on, const std::string& kernel, std::int64_t blocks);

 private:
  RowArray& add(const Tensor& x, bool along);
  /// Whether it is so for all arrays that have elements along a row.
  template <class Fits>
  bool all_along(Fits fits) const;
  /// An array whose dim place(d) is dim d of the shape.
  Rows& placed(const Tensor& x, int (*place)(int dim, int dims));
  /// Joins dims that all arrays allow.
  void join(int& dims, std::int64_t* extents, std::int64_t* (*strides)(RowArray&));

  RowArguments arguments_ = {};
  Dims shape_;
  Dims along_;
  std::size_t arrays_ = 0;
  bool has_rows_[most_row_arrays] = {};
  std::size_t numbers_ = 0;
  std::size_t integers_ = 0;
};

/// Elements of 16 bytes.
int elements_of_piece(DType type);

/// How rows are cut where there are few of them: so many parts, of so many elements each but the
/// last. It depends on the shape only, so sums have the same bits on each GPU.
struct Parts {
  std::int64_t each;
  std::int64_t count;
};
Parts parts_of_rows(std::int64_t rows, std::int64_t length, DType type);
/// The same of the rows that are summed over for each of `length` columns.
Parts groups_of_rows(std::int64_t rows, std::int64_t length, DType type);

/// Partial results in memory of the call, whose strides the caller sets where it reads them.
RowArray partials_at(void* data, DType type);
/// Queues the sums over the rows of a view with arrays x and y, divided by its number. `memory`: of
/// bytes_of_groups.
void sum_columns(Rows& rows, const Tensor& y, std::span<std::byte> memory);
std::size_t bytes_of_groups(std::int64_t rows, std::int64_t length, DType type);
/// Queues the sums over `groups` rows of partial sums, each as a row of the view is.
void join_groups(RowArguments a, const RowArray& result, void* partials, std::int64_t groups,
                 const Tensor& on);

/// The type that elements of a type are added up in.
DType summed_type(DType type);
/// "sum_rows" -> "sum_rows_f32", "sum_rows_f64" or "sum_rows_i64".
std::string with_summed_type(const std::string& kernel, DType type);
/// "softmax" -> "softmax_f32", for types that are computed in float, or "softmax_f64".
std::string with_type(const std::string& kernel, DType type);

}  // namespace tessera::cuda
