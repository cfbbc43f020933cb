// Every accessor of an undefined tensor is an error, not a crash: a gradient that did not arrive is
// such a tensor.
#include <functional>
#include <string>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;

using namespace tessera;

TEST_CASE("accessors of an undefined tensor are errors") {
  const Tensor leaf = zeros({2});
  Tensor none = leaf.grad();
  REQUIRE(!none.defined());
  const std::function<void()> accessors[] = {
      [&] { none.shape(); },
      [&] { none.dims(); },
      [&] { none.size(0); },
      [&] { none.numel(); },
      [&] { none.dtype(); },
      [&] { none.device(); },
      [&] { none.is_distributed(); },
      [&] { none.is_meta(); },
      [&] { none.strides(); },
      [&] { none.offset(); },
      [&] { none.is_contiguous(); },
      [&] { none.raw_data(); },
      [&] { none.data<float>(); },
      [&] { none.storage(); },
      [&] { none.spec(); },
      [&] { none.local(); },
      [&] { none.layout(); },
      [&] { none.requires_grad(); },
      [&] { none.set_requires_grad(); },
      [&] { none.set_requires_grad(false); },
      [&] { none.grad(); },
      [&] { none.item(); },
      [&] { to_doubles(none); },
      [&] { detached(none); },
      [&] { alias(none, {1}, {1}, 0); },
  };
  int which = 0;
  for (const auto& access : accessors) {
    INFO("accessor " << which++);
    std::string error;
    try {
      access();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    CHECK(error.find("tensor: it is undefined") == 0);
  }
  CHECK(to_string(none) == "undefined");
}
