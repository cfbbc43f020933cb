module;
#include <memory>
#include <utility>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.execute;
import tessera.nn;

namespace tessera {
namespace {

class InPlace final : public OtherMemory {
 public:
  explicit InPlace(std::shared_ptr<nn::MemoryPlace> place) : place_(std::move(place)) {}

  Tensor allocate(const Dims& shape, DType dtype) override {
    return place_->allocate(shape, dtype);
  }
  void request(const Tensor& x) override { place_->prefetch(x); }
  void put_away(const Tensor& x) override { place_->put_away(x); }

 private:
  std::shared_ptr<nn::MemoryPlace> place_;
};

}  // namespace

std::shared_ptr<OtherMemory> other_memory(std::shared_ptr<nn::MemoryPlace> place) {
  return std::make_shared<InPlace>(std::move(place));
}

}  // namespace tessera
