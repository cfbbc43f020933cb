#include "adam_lanes.hpp"

namespace tessera::kernels {

template decltype(update<Adam>) update<Adam>;

}  // namespace tessera::kernels
