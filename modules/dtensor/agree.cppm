module tessera.dtensor:agree;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera {

/// All ranks of the layout's mesh compare their local tensors: number of dims, types, whether the
/// parts fit together to `shape` (or, without it, which shape they form), and whether copies are
/// equal. Returns the global shape. One all-gather. Errors: the first difference, on every rank.
Dims agree_on_parts(const Tensor& local, const Layout& layout, std::optional<Dims> shape);

}  // namespace tessera
