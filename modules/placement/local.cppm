export module tessera.placement:local;

import tessera.base;
import tessera.mesh;
import :layout;

export namespace tessera {

/// The length of a chunk when `length` is cut into `shards`: ceil(length / shards).
inline constexpr std::int64_t chunk_size(std::int64_t length, int shards) {
  return length / shards + (length % shards != 0 ? 1 : 0);  // no sum that could overflow
}

/// A half-open range of indices of one dim.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// The part of a range that chunk `index` of `shards` holds; empty when the chunks before hold all.
inline constexpr ShardRange chunk_of(ShardRange whole, int shards, int index) {
  const std::int64_t chunk = chunk_size(whole.length, shards);
  const std::int64_t begin = std::min(whole.length, index * chunk);
  return {whole.begin + begin, std::min(whole.length - begin, chunk)};
}

/// The part of a tensor that a rank holds: a box, `offset` and `shape` in global indices.
struct LocalPart {
  Dims offset;
  Dims shape;
};

/// The box that two boxes of one tensor share, if there is one.
std::optional<LocalPart> intersection(const LocalPart& a, const LocalPart& b);

/// The part of a tensor of `shape` that the rank at `coordinates` (one for each mesh axis) holds.
/// Error (input): the layout shards a dim that the tensor does not have.
LocalPart local_part(const Dims& shape, const Layout& layout, const Dims& coordinates);
Dims local_shape(const Dims& shape, const Layout& layout, const Dims& coordinates);
Dims local_offset(const Dims& shape, const Layout& layout, const Dims& coordinates);

/// The part by global rank. Error: the rank is not of the layout's mesh.
LocalPart local_part(const Dims& shape, const Layout& layout, int rank);

/// The shape that no rank's part exceeds: every cut rounded up. What collectives pad to.
Dims padded_local_shape(const Dims& shape, const Layout& layout);

/// Whether all ranks hold parts of the same shape.
bool shards_evenly(const Dims& shape, const Layout& layout);

/// Calls f(first, length) for each longest run of consecutive row-major indices of a tensor of
/// `shape` within the box; ascending, and in the order of the box's own row-major elements.
template <class F>
void for_each_run(const Dims& shape, const LocalPart& part, F&& f) {
  if (part.shape.product() == 0) {
    return;
  }
  // Dims from `inner` on lie in one piece: all but the first of them are whole.
  int inner = std::max(shape.size() - 1, 0);
  while (inner > 0 && part.shape[inner] == shape[inner]) {
    --inner;
  }
  const Dims strides = contiguous_strides(shape);
  std::int64_t run = 1;
  std::int64_t first = 0;
  for (int d = 0; d < shape.size(); ++d) {
    first += part.offset[d] * strides[d];
    run *= d >= inner ? part.shape[d] : 1;
  }
  Dims index = Dims::filled(inner, 0);
  for (;;) {
    f(first, run);
    int d = inner - 1;
    for (; d >= 0; --d) {
      first += strides[d];
      if (++index[d] < part.shape[d]) {
        break;
      }
      first -= index[d] * strides[d];
      index[d] = 0;
    }
    if (d < 0) {
      return;
    }
  }
}

/// The runs of the part that a rank at these coordinates has.
template <class F>
void for_each_run(const Dims& shape, const Layout& layout, const Dims& coordinates, F&& f) {
  for_each_run(shape, local_part(shape, layout, coordinates), static_cast<F&&>(f));
}

}  // namespace tessera
