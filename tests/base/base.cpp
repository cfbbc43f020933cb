#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;

using namespace tessera;

TEST_CASE("patterns match qualified names") {
  CHECK(
      matches_pattern("model.layers.3.self_attn.q_proj", "model.layers.*.self_attn.{q,k,v}_proj"));
  CHECK_FALSE(
      matches_pattern("model.layers.3.self_attn.o_proj", "model.layers.*.self_attn.{q,k,v}_proj"));
  CHECK_FALSE(matches_pattern("model.layers.3.mlp", "model.*"));
  CHECK(matches_pattern("model.layers.3.mlp", "model.**"));
  CHECK(matches_pattern("", "."));
  CHECK_FALSE(matches_pattern("model", "."));
  CHECK_THROWS_AS(matches_pattern("a", "{a"), Error);
}

TEST_CASE("a misspelt name finds its neighbour") {
  const std::vector<std::string> known = {"steps", "batch", "micro_batch", "seed"};
  CHECK(nearest_name("step", known) == "steps");
  CHECK(nearest_name("microbatch", known) == "micro_batch");
  CHECK(nearest_name("zzzzzz", known).empty());
}

TEST_CASE("types promote as in PyTorch") {
  CHECK(promote(DType::bf16, DType::f16) == DType::f32);
  CHECK(promote(DType::i64, DType::bf16) == DType::bf16);
  CHECK(promote(DType::f32, DType::f64) == DType::f64);
  CHECK(promote(DType::boolean, DType::i32) == DType::i32);
}

TEST_CASE("an inline vector grows past its inline entries and keeps its values") {
  InlineVector<std::string, 2> v;
  for (int i = 0; i < 9; ++i) {
    v.push_back(std::string(30, static_cast<char>('a' + i)));
  }
  InlineVector<std::string, 2> copy = v;
  InlineVector<std::string, 2> moved = std::move(v);
  CHECK(copy == moved);
  CHECK(moved.size() == 9);
  CHECK(moved[8] == std::string(30, 'i'));
}

TEST_CASE("FLOPs have a decimal unit and three digits") {
  CHECK(format_flops(0) == "0 FLOP");
  CHECK(format_flops(65536) == "65.5 kFLOP");
  CHECK(format_flops(999.4) == "999 FLOP");
  CHECK(format_flops(999.6) == "1.00 kFLOP");
  CHECK(format_flops(4.2e12) == "4.20 TFLOP");
  CHECK(format_flops(3e21) == "3000 EFLOP");
}

TEST_CASE("dims refuse more than eight entries") {
  Dims d = Dims::filled(8, 1);
  CHECK_THROWS_AS(d.push_back(1), Error);
  CHECK(to_string(Dims{2, 3}) == "[2, 3]");
  CHECK(contiguous_strides(Dims{2, 3, 4}) == Dims{12, 4, 1});
}
