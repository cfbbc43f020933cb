// A listener stays where it is, whatever throws.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;

using namespace tessera;

namespace {

/// Writes down what it hears, and throws at operators of one name.
class Names final : public Listener {
 public:
  explicit Names(std::string refused = {}) : refused_(std::move(refused)) {}
  void called(const Call& call, std::span<const Tensor>) override {
    heard.push_back(call.op.name);
    if (call.op.name == refused_) {
      fail("the listener refuses");
    }
  }
  std::vector<std::string> heard;

 private:
  std::string refused_;
};

template <class F>
bool throws(F f) {
  try {
    f();
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a listener hears on after an operator that failed") {
  for (const ListenAt where : {ListenAt::above_distribution, ListenAt::below_distribution}) {
    Names names;
    const ListenerScope scope(where, &names);
    const Tensor x = zeros({2, 3});
    CHECK(throws([&] { call(find_op("mm"), {x, x}); }));
    call(find_op("exp"), {x});
    CHECK(names.heard == std::vector<std::string>{"exp"});
  }
}

TEST_CASE("a listener hears on after it has thrown") {
  for (const ListenAt where : {ListenAt::above_distribution, ListenAt::below_distribution}) {
    Names names("exp");
    const ListenerScope scope(where, &names);
    const Tensor x = zeros({2, 3});
    CHECK(throws([&] { call(find_op("exp"), {x}); }));
    call(find_op("neg"), {x});
    CHECK(names.heard == std::vector<std::string>{"exp", "neg"});
  }
}

TEST_CASE("a scope puts the listener before it back, also when it is left by an error") {
  Names outer;
  Names inner;
  const Tensor x = zeros({2});
  const ListenerScope scope(ListenAt::above_distribution, &outer);
  CHECK(throws([&] {
    const ListenerScope narrower(ListenAt::above_distribution, &inner);
    call(find_op("exp"), {x});
    fail("out");
  }));
  call(find_op("neg"), {x});
  CHECK(inner.heard == std::vector<std::string>{"exp"});
  CHECK(outer.heard == std::vector<std::string>{"neg"});
}
