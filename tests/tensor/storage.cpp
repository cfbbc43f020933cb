// A storage and the work in progress that fills its memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;

using namespace tessera;

namespace {

/// Writes until it ends, as a collective that was issued does, and notes when it has ended.
class Writer final : public PendingWork {
 public:
  Writer(Storage& storage, std::vector<std::int64_t>& ends) : storage_(storage), ends_(ends) {}
  ~Writer() override {
    static_cast<std::byte*>(storage_.data())[0] = std::byte{1};
    ends_.push_back(memory_statistics().total);
  }

 private:
  Storage& storage_;
  std::vector<std::int64_t>& ends_;
};

}  // namespace

TEST_CASE("work that fills a dropped tensor ends while the tensor still has its memory") {
  std::vector<std::int64_t> ends;  // the bytes in use at each end
  const std::int64_t before = memory_statistics().total;
  std::int64_t during = 0;
  {
    const Tensor x = empty({1024});
    during = memory_statistics().total;
    REQUIRE(during > before);
    x.storage().set_pending(std::make_unique<Writer>(x.storage(), ends));
    const Tensor view = alias(x, {512}, {1}, 512);
    CHECK(ends.empty());
  }
  CHECK(ends == std::vector{during});
  CHECK(memory_statistics().total == before);
}

TEST_CASE("work in progress that is replaced ends first, and work that is taken away ends alone") {
  std::vector<std::int64_t> ends;
  const Tensor x = empty({4});
  x.storage().set_pending(std::make_unique<Writer>(x.storage(), ends));
  x.storage().set_pending(std::make_unique<Writer>(x.storage(), ends));
  CHECK(ends.size() == 1);
  std::unique_ptr<PendingWork> taken = x.storage().take_pending();
  CHECK(x.storage().pending() == nullptr);
  CHECK(ends.size() == 1);
  taken.reset();
  CHECK(ends.size() == 2);
}
