// Files that are damaged, hostile, or have what is not supported: refused by name, before memory is
// taken.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "difference.hpp"
#include "errors.hpp"
#include "folder.hpp"
#include "sealed_zip.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.exported;
import tessera.tensor;

using namespace tessera;
using namespace exported_test;
using testing::Folder;
using testing::input_error;

namespace {

std::string refusal_of(const std::string& path) {
  return input_error([&] { exported::load_exported(path); });
}

/// Why a stored program is refused in which `from` is replaced, everywhere, by a text as long; its
/// checksums are those of the new bytes.
std::string refusal_with(const std::string& name, std::string_view from, std::string_view to) {
  std::string bytes = testing::read_file(stored() + "/" + name + ".pt2");
  REQUIRE(from.size() == to.size());
  std::size_t count = 0;
  for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) {
    bytes.replace(at, to.size(), to);
    ++count;
  }
  REQUIRE(count > 0);
  testing::seal_zip(bytes);
  const Folder folder;
  return refusal_of(folder.write(name + ".pt2", bytes));
}

}  // namespace

TEST_CASE("operators that are not known are listed all at once, with their counts") {
  std::string bytes = testing::read_file(stored() + "/convolutions.pt2");
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) {
      bytes.replace(at, to.size(), to);
    }
  };
  replace("torch.ops.aten.relu.default", "torch.ops.aten.zelu.default");
  replace("torch.ops.aten.mean.dim", "torch.ops.aten.meen.dim");
  testing::seal_zip(bytes);
  const Folder folder;
  const std::string text = refusal_of(folder.write("both.pt2", bytes));
  CHECK_THAT(text, Catch::Contains("2 operators in 3 calls that are not known"));
  CHECK_THAT(text, Catch::Contains("operator aten.zelu.default: 2"));
  CHECK_THAT(text, Catch::Contains("operator aten.meen.dim: 1"));
}

TEST_CASE("a newer schema is refused by its number") {
  const std::string text = refusal_with("convolutions", "\"major\": 8", "\"major\": 9");
  CHECK_THAT(text, Catch::Contains("expected 8, got 9."));
}

TEST_CASE("what PyTorch exports and we do not support is refused by name") {
  CHECK_THAT(refusal_of(stored() + "/changed.pt2"),
             Catch::Contains("an input that is changed in place: 1"));
  CHECK_THAT(refusal_of(stored() + "/branches.pt2"), Catch::Contains("control flow"));
  const std::string text = refusal_of(stored() + "/complex.pt2");
  CHECK_THAT(text, Catch::Contains("a tensor of the type 10 of PyTorch's schema"));
  CHECK_THAT(text, Catch::Contains("operator aten._fft_r2c.default: 1"));
}

TEST_CASE("an argument that an operator does not have is refused") {
  CHECK_THAT(refusal_with("convolutions", "\"name\": \"dilation\"", "\"name\": \"dilatiom\""),
             Catch::Contains("an argument 'dilatiom' of aten.convolution.default: 2"));
}

TEST_CASE("damaged files of torch.export are refused") {
  const std::string whole = testing::read_file(stored() + "/convolutions.pt2");
  const Folder folder;
  for (const std::size_t kept :
       {std::size_t{0}, std::size_t{10}, whole.size() / 2, whole.size() - 1}) {
    CHECK_THAT(refusal_of(folder.write("cut.pt2", whole.substr(0, kept))),
               Catch::Contains("cut.pt2"));
  }
  CHECK_THAT(refusal_with("convolutions", "weight_0\"", "weight_9\""),
             Catch::Contains("has no bytes") || Catch::Contains("reaches beyond"));
  CHECK_THAT(refusal_with("convolutions", "\"sizes\": [{\"as_int\": 8}, {\"as_int\": 3}",
                          "\"sizes\": [{\"as_int\": 9}, {\"as_int\": 3}"),
             Catch::Contains("reaches beyond its"));
  CHECK_THAT(refusal_with("convolutions", "models/model.json", "models/nodel.json"),
             Catch::Contains("it has no program"));
}

TEST_CASE("a file whose bytes have another checksum than its archive says is refused") {
  const std::string whole = testing::read_file(stored() + "/convolutions.pt2");
  const Folder folder;
  std::string bytes = whole;
  bytes[bytes.find("torch.ops.aten.relu") + 16] ^= 1;
  CHECK_THAT(refusal_of(folder.write("graph.pt2", bytes)),
             Catch::Contains("'models/model.json' is damaged"));
  // A bit of a weight: found when the tensor is read, and only then.
  const auto file = checkpoint_format("pt2").open(stored() + "/convolutions.pt2");
  const Tensor weight = file->read("first.0.weight");
  const std::string values(static_cast<const char*>(weight.device_address()),
                           static_cast<std::size_t>(weight.numel()) * sizeof(float));
  bytes = whole;
  bytes[bytes.find(values) + 5] ^= 1;
  const std::string path = folder.write("weight.pt2", bytes);
  CHECK_THAT(refusal_of(path), Catch::Contains("'first.0.weight' is damaged"));
  const auto other = checkpoint_format("pt2").open(path);
  CHECK(other->read("first.0.bias").shape() == Dims{8});
}

TEST_CASE("dims outside of the range that a program was exported for are refused") {
  const auto model = exported::load_exported(stored() + "/gpt2.pt2");
  const auto refused = [&](Dims shape) {
    return input_error([&] { (*model)({full(shape, 5, DType::i64)}); });
  };
  CHECK_THAT(refused({3, 33}), Catch::Contains("(2 to 64)") && Catch::Contains("(4 to 32)") &&
                                   Catch::Contains("got i64[3, 33]"));
  CHECK_THAT(refused({3, 3}), Catch::Contains("got i64[3, 3]"));
  CHECK_THAT(refused({65, 8}), Catch::Contains("got i64[65, 8]"));
  CHECK_THAT(refused({1, 8}), Catch::Contains("got i64[1, 8]"));
}

TEST_CASE("inputs that a program was not exported for are refused with what it takes") {
  const auto model = exported::load_exported(stored() + "/convolutions.pt2");
  CHECK_THAT(input_error([&] { (*model)({zeros({4, 3, 9, 8})}); }),
             Catch::Contains("expected f32[s77 (2 to 64), 3, 8, 8]"));
  CHECK_THAT(input_error([&] { (*model)({zeros({4, 3, 8, 8}, DType::f64)}); }),
             Catch::Contains("got f64"));
}
