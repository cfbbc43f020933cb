// What the driver's handles stand for, for the other emulated libraries.
#pragma once
#include <memory>

#include "driver_api.hpp"
#include "streams.hpp"

namespace tessera::cuda {

struct StreamData {
  std::shared_ptr<emulator::Stream> stream;
};

}  // namespace tessera::cuda
