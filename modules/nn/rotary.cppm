export module tessera.nn:rotary;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :parameter;
import :ragged_batch;

export namespace tessera::nn {

/// Wavelengths of which each is multiplied by a factor of its own, by another one in long rows.
/// Source: Ding et al., LongRoPE (2024), 2402.13753.
struct WavelengthFactors {
  std::vector<double> short_rows =
      {};  // of at most `limit` positions, one for each pair; empty: none
  std::vector<double> long_rows = {};  // of more
  std::int64_t limit = 0;
  double amplitude = 1;  // cosines and sines are multiplied by it

  bool exist() const { return !short_rows.empty(); }
  /// Errors (input): other numbers of factors than so many features have pairs; a number that is
  /// not positive.
  void check(std::int64_t dims) const;
};

/// How a layer rotates its queries and keys by their positions.
struct RotaryOptions {
  double theta = 0;  // the base of the wavelengths; 0: nothing is rotated
  ops::RotaryScaling scaling = {};
  std::int64_t dims = 0;    // so many features of a head, the first ones, are rotated; 0: all
  bool neighbours = false;  // pairs are features 2i and 2i + 1; otherwise i and dims / 2 + i
  bool reversed = false;    // angles are those of the positions times -1
  /// A row of more positions has a larger base: theta * (stretch * length / limit - stretch + 1) ^
  /// (dims / (dims - 2)). 0: it has not. Source: transformers' "dynamic" rotary embedding.
  double stretch = 0;
  std::int64_t limit = 0;
  WavelengthFactors factors = {};  // without a scaling and a stretch

  /// Errors (input): those of WavelengthFactors; an odd number of features, more than a head of
  /// `head_dim` has.
  void check(std::int64_t head_dim) const;
};

/// Queries that grow with their positions p: they are multiplied by 1 + scale ln(1 + floor((p +
/// first) / period)). Source: Nakanishi, Scalable-Softmax (2025), as Llama 4 has it.
struct QueryGrowth {
  double scale = 0;  // 0: they do not grow
  std::int64_t period = 1;
  std::int64_t first = 0;

  /// Errors (input): a period below 1, a scale that is negative or no number.
  void check() const;
};

/// Where the tokens of a call are.
struct TokenPositions {
  Tensor given;                        // i64 [T] or [B, T]; undefined: they follow one another
  std::int64_t before = 0;             // then the number of tokens before the first
  const RaggedBatch* batch = nullptr;  // the tokens are this batch's, whose positions are given
};

/// Heads x [B, T, H, D], rotated. Where pairs are neighbours, the rotated features come out in the
/// order of halves, and where angles are reversed, the halves are swapped: products of queries with
/// keys that were rotated alike are the same. `angles`: angles_of(), where there are factors.
Tensor rotate(const Tensor& x, const RotaryOptions& options, const TokenPositions& positions,
              const Tensor& angles = {});
/// Queries x [B, T, H, D], multiplied by what they grow by.
Tensor grown(const Tensor& x, const QueryGrowth& growth, const TokenPositions& positions);

}  // namespace tessera::nn

namespace tessera::nn {

/// The positions of x's tokens [B, T, ...]: the given ones, or i64 [T], laid out as x is along its
/// tokens.
Tensor numbers_of(const Tensor& x, const TokenPositions& positions);

/// The angles of a position, f32 [2, pairs]: of short rows and of long ones.
BufferPointer angles_of(const RotaryOptions& options, std::int64_t head_dim);
/// Features (B, T, H D) of heads -> (B, T, H, D).
Tensor heads_of(const Tensor& features, std::int64_t width);

}  // namespace tessera::nn
