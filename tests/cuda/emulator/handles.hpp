// A stream as programs hold it, for the libraries that queue work: libcuda and libnccl.
#pragma once
#include <memory>
#include <string>

#include "driver_api.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace tessera::cuda {

struct StreamData {
  std::shared_ptr<emulator::Stream> stream;
};

}  // namespace tessera::cuda

namespace emulator {

inline std::string name_of(const Stream& stream) {
  return text("stream ", stream.number, " of device ", stream.device);
}

}  // namespace emulator
