module;
#include <cstdint>
#include <map>
#include <string>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera {

TensorsInMemory::TensorsInMemory(std::map<std::string, Tensor> tensors, std::string path)
    : TensorSource(std::move(path)), values_(std::move(tensors)) {
  for (auto& [name, tensor] : values_) {
    tensor = detached(tensor);
    tensors_.emplace(name, TensorInfo{tensor.dtype(), tensor.shape()});
  }
}

std::uint64_t TensorsInMemory::bytes_read() const { return 0; }

void TensorsInMemory::copy_box(const std::string& name, const LocalPart& box,
                               const Tensor& into) const {
  Tensor part = values_.at(name);
  for (int dim = 0; dim < part.dims(); ++dim) {
    part = ops::narrow(part, dim, box.offset[dim], box.shape[dim]);
  }
  ops::copy_(into, part);
}

}  // namespace tessera
