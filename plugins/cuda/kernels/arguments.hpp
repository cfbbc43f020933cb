// The structures that kernels get. One is filled by the host and read by the kernel of the same
// source, so it has fixed types only; addresses are of the device's memory.
#pragma once
#include <cstdint>
#include <tessera/dtype.hpp>

#include "attention/functions/rotary.hpp"

namespace tessera::cuda {

inline constexpr int most_dims = 8;
inline constexpr int most_operands = 3;
inline constexpr int most_numbers = 4;
inline constexpr unsigned threads_per_block = 256;
/// Elements that one thread of an elementwise kernel computes.
inline constexpr unsigned elements_per_thread = 4;

/// Blocks of a kernel in which each thread computes some of `count` elements, at least one.
inline unsigned blocks_for(std::int64_t count, unsigned per_thread = elements_per_thread) {
  const std::int64_t each = std::int64_t{threads_per_block} * per_thread;
  constexpr std::int64_t most = 1 << 16;
  const std::int64_t blocks = (count + each - 1) / each;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/// One word of 8 bytes, `count` times.
struct FillArguments {
  void* to;
  std::uint64_t word;
  std::int64_t count;
};

/// A strided array: strides in elements, of the shape that the whole call has.
struct StridedArray {
  void* data;
  std::int64_t strides[most_dims];
  DType type;
  bool contiguous;
};

/// y = f(operands; numbers) at each place of a shape.
struct ElementArguments {
  std::int64_t count;
  std::int64_t extents[most_dims];
  int dims;
  StridedArray operands[most_operands];
  StridedArray result;
  double numbers[most_numbers];
  DType computed;  // the type that is computed in; f32 for 16 bits
  bool
      in_pieces;  // elements 8 n to 8 n + 7 of each array are a piece of its memory, or one element
};

/// Elements of a piece where arrays have several types.
inline constexpr int elements_of_pieces = 8;
/// Elements that one thread of a kernel of pieces computes.
inline constexpr unsigned pieces_per_thread = 2;

/// Places of a part's elements in the whole tensor, in its order.
struct PartPlaces {
  std::int64_t first;               // of the part's first element
  std::int64_t extents[most_dims];  // of the part
  std::int64_t strides[most_dims];  // of the whole tensor
  int dims;                         // at least 1
};

/// An array as rows: strides in elements along the dims that count rows, and along those that a row
/// has. Strides are 0 where all rows share it, and where a row has one element of it.
struct RowArray {
  void* data;  // null: the operand is absent
  std::int64_t kept[most_dims];
  std::int64_t along[most_dims];
  DType type;
};

inline constexpr int most_row_arrays = 7;
/// A kernel of rows: each is computed alone. The meaning of arrays and numbers is the kernel's.
struct RowArguments {
  std::int64_t rows;
  std::int64_t length;
  std::int64_t kept_extents[most_dims];
  std::int64_t along_extents[most_dims];
  int kept_dims;
  int along_dims;
  int piece;  // elements of the first array that 16 bytes have
  int team;   // threads that a row has, where several rows are in a block
  RowArray arrays[most_row_arrays];
  double numbers[2];
  std::int64_t integers[3];
};

/// The first index of a call that is out of its range, or the first token of a document that does
/// not follow the one before, in pinned memory, for the host. `kind` is written last.
enum class ProblemKind : std::uint32_t {
  none,
  index,
  some_index,
  target,
  group,
  document,
  position
};
struct Problem {
  ProblemKind kind;
  std::int32_t op;  // Op::id
  std::int64_t value;
  std::int64_t place;    // among the call's indices
  std::int64_t limit;    // the range is [0, limit); of a document: the tokens of a row
  std::int64_t ignored;  // of a target: a value that is not an error; of a document: the one before
  std::int64_t position;  // of a document: that of its row's first token
};

/// Indices that are looked at before a kernel uses them.
struct IndexArguments {
  RowArguments indices;  // array 0, a row for each
  std::int64_t limit;
  std::int64_t ignored;
  Problem* problem;
  std::int32_t op;
  ProblemKind kind;
};

/// An index of a product, perhaps of several dims.
struct Axis {
  std::int64_t size;
  std::int64_t extents[most_dims];
  int dims;
};

/// A matrix of a product: strides along the batch and along its own two axes.
struct Matrix {
  void* data;  // null: absent
  std::int64_t batch[most_dims];
  std::int64_t rows[most_dims];
  std::int64_t columns[most_dims];
  DType type;
};

/// y [m, n] = a [m, k] times b [k, n], plus bias, for each entry of a batch.
struct ProductArguments {
  Axis batch, m, n, k;
  Matrix a, b, bias, y;
  bool accumulate;  // the bias is what y holds
};

/// Rows of the heads of attention: [batch, time, head, dim], by strides.
struct HeadArray {
  void* data;
  std::int64_t batch, time, head, dim;
  DType type;
};

/// Rotary positions: the two halves of each head's dims are turned by an angle.
struct RotaryArguments {
  std::int64_t batches, times, heads, half;
  HeadArray x, y;
  HeadArray positions;  // [batch, time], i64; may be absent
  std::int64_t offset;  // the position of the first time, without positions
  functions::RotaryFrequencies frequencies;
  double direction;  // -1: the inverse
};

/// Attention in which query i sees the keys up to i + shift: at most `window` of them (0: any
/// number), and none before the first token of its document. Query head h reads the key head
/// h / group.
struct AttentionArguments {
  std::int64_t batches, queries, keys, key_heads, group, head_dim, value_dim;
  HeadArray q, k, v, y;
  HeadArray log_sums;  // [batch, time, head] with dim 1
  HeadArray means;     // the same: of the gradients of a query's probabilities
  HeadArray dy, dq, dk, dv;
  HeadArray documents;  // [batch, time], i64: the first token of a query's document; may be absent
  double scale;
  double softcap;  // a scaled score s becomes softcap tanh(s / softcap); 0: it stays
  std::int64_t window;
  std::int64_t shift;      // `keys` where a query sees all of them
  std::int64_t first_key;  // the position of key 0, by which documents are named
};

/// Two results of attention, y and other, [batch, time, head, dim] with their log sums.
struct MergeArguments {
  std::int64_t batches, times, heads, dim;
  HeadArray y, log_sums, other, other_log_sums, merged, merged_log_sums;
};

/// Documents that are looked at beside the attention that uses them.
struct DocumentArguments {
  std::int64_t batches, times;
  std::int64_t position;  // of a row's first token, whose document may have begun earlier
  HeadArray documents;
  Problem* problem;
  std::int32_t op;
};

}  // namespace tessera::cuda
