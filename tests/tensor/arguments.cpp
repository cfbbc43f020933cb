// An operator's arguments: one aggregate gives schema, key, equality, text and JSON.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

using namespace tessera;

namespace {

enum class Resize { nearest, linear, cubic };

struct EveryType {
  std::int64_t dim;
  bool keepdim;
  double p;
  Dynamic<double> lr;
  Dims shape;
  DType dtype;
  ReduceOp reduce;
  Dynamic<std::int64_t> offset;
  SpecArgument to;
  Resize mode;
};

SpecHandle some_spec() {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2}, {4, 5, 6, 7});
  return Spec::make(Layout::make(mesh, {Shard(1), Partial(ReduceOp::max)}), {8, 4}, DType::bf16);
}

EveryType some() {
  return {-3,         true,          2.5, 0.1,           {2, 3, 0},
          DType::f16, ReduceOp::max, 7,   {some_spec()}, Resize::linear};
}

const ArgumentsInfo& info = ArgumentsOf<EveryType>::info;

}  // namespace

TEST_CASE("arguments: the fields' names and types are read from the aggregate") {
  std::string text;
  for (const ArgumentField& field : info.fields) {
    text += to_string(field) + "; ";
  }
  CHECK(text ==
        "dim: int; keepdim: bool; p: float; lr: dynamic float; shape: dims; dtype: dtype; reduce: "
        "reduce_op; offset: dynamic int; to: spec; mode: nearest/linear/cubic; ");
}

TEST_CASE("arguments: what was given is read back") {
  const Attributes attributes = some();
  const auto back = arguments_as<EveryType>(attributes);
  CHECK(back.dim == -3);
  CHECK(back.keepdim);
  CHECK(back.p == 2.5);
  CHECK(back.lr == 0.1);
  CHECK(back.shape == Dims{2, 3, 0});
  CHECK(back.dtype == DType::f16);
  CHECK(back.reduce == ReduceOp::max);
  CHECK(back.offset == 7);
  CHECK(back.to.spec == some_spec());
  CHECK(back.mode == Resize::linear);
  // The dynamic ones are not in the key.
  CHECK(attributes.dynamic().size() == 2);
  CHECK(attributes.fixed().size() == 11);
}

TEST_CASE("arguments: equal where every argument is") {
  const Attributes attributes = some();
  CHECK(attributes == Attributes(some()));
  EveryType other = some();
  other.lr = 0.2;
  CHECK_FALSE(attributes == Attributes(other));
  other = some();
  other.shape = {2, 3};
  CHECK_FALSE(attributes == Attributes(other));
}

TEST_CASE("arguments: text and JSON mean the same in every process, and are read back") {
  const Attributes attributes = some();
  const std::string text = to_text(info, attributes);
  CHECK(text ==
        "dim=-3, keepdim=true, p=2.5, lr=0.1, shape=[2, 3, 0], dtype=f16, reduce=max, offset=7, "
        "to=bf16[8, 4] [Shard(1), Partial(max)] on mesh(shard=2, tensor=2) of ranks 4 5 6 7, "
        "mode=linear");
  CHECK(attributes_from_text(info, text, "test") == attributes);
  const std::string json = to_json(info, attributes);
  CHECK(attributes_from_json(info, json, "test") == attributes);
  EveryType odd = some();
  odd.p = -std::numeric_limits<double>::infinity();
  odd.lr = std::nextafter(0.1, 1.0);
  odd.to = {};
  CHECK(attributes_from_text(info, to_text(info, odd), "test") == Attributes(odd));
  CHECK(attributes_from_json(info, to_json(info, odd), "test") == Attributes(odd));
}

TEST_CASE("arguments: a text that does not fit is an error that names the argument") {
  struct Two {
    std::int64_t dim;
    DType dtype;
  };
  const ArgumentsInfo& two = ArgumentsOf<Two>::info;
  const auto error = [&](const char* text) {
    try {
      attributes_from_text(two, text, "softmax");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(error("dim=1, dtype=f32") == "no error");
  CHECK(error("dim=1") == "softmax: argument 'dtype' (dtype) is missing; add it");
  CHECK(error("dim=1, dtyp=f32") ==
        "softmax: there is no argument 'dtyp'; did you mean 'dtype'?; the arguments are: dim and "
        "dtype");
  CHECK(error("dim=x, dtype=f32") == "softmax: a value of type int is expected (got 'x')");
  CHECK(error("dim=1, dim=2, dtype=f32") == "softmax: argument 'dim' is given twice; remove one");
  CHECK(
      error("dim=1, dtype=f8") ==
      "softmax: a value of type dtype (one of f32, f64, bf16, f16, i64, i32, u8, bool, i8, f8e4m3, "
      "f8e5m2) is expected (got 'f8')");
}

TEST_CASE("arguments: an enumerator is stored by its name, and a number is refused") {
  struct Before {
    Resize mode;
  };
  // The same enumeration after somebody has reordered it.
  enum class Reordered { cubic, linear, nearest };
  struct After {
    Reordered mode;
  };
  for (const Resize mode : {Resize::nearest, Resize::linear, Resize::cubic}) {
    const std::string text = to_text(ArgumentsOf<Before>::info, Before{mode});
    const Attributes read = attributes_from_text(ArgumentsOf<After>::info, text, "resize");
    CHECK(to_text(ArgumentsOf<After>::info, read) == text);
    const std::string json = to_json(ArgumentsOf<Before>::info, Before{mode});
    CHECK(to_json(ArgumentsOf<After>::info,
                  attributes_from_json(ArgumentsOf<After>::info, json, "resize")) == json);
  }
  CHECK(to_text(ArgumentsOf<Before>::info, Before{Resize::cubic}) == "mode=cubic");
  for (const char* stored : {"mode=1", "mode=cubi", "mode="}) {
    INFO(stored);
    try {
      attributes_from_text(ArgumentsOf<Before>::info, stored, "resize");
      FAIL("it was read");
    } catch (const Error& error) {
      CHECK(std::string(error.what()) ==
            "resize: a value of type nearest/linear/cubic is expected (got '" +
                std::string(stored).substr(5) + "')");
    }
  }
  CHECK_THROWS_AS(attributes_from_json(ArgumentsOf<Before>::info, R"({"mode": 1})", "resize"),
                  Error);
}

TEST_CASE("arguments: read as another type is an error") {
  struct Other {
    std::int64_t dim;
  };
  CHECK_THROWS_AS(arguments_as<Other>(Attributes(some())), Error);
}
