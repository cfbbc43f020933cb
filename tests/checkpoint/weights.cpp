// What the values of weights in Hugging Face's form must be: finite, in one file only, the same
// where two names are one tensor.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

using namespace tessera;
using namespace checkpoint_test;

namespace {

void write_tensors(const std::string& path, const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos[name] = {tensor.dtype(), tensor.shape()};
  }
  SafetensorsWriter writer(path, infos);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.finish();
}

}  // namespace

TEST_CASE("a tensor that is in two files, or in a file but not in the index, is refused") {
  const Folder folder;
  const auto fails = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return input_error([&] { SafetensorsFolder{folder / ""}; });
  };
  write_tensors(folder / "a.safetensors", {{"x", zeros({2})}});
  write_tensors(folder / "b.safetensors", {{"x", full({2}, 1)}, {"y", zeros({2})}});
  // Readers that take all of a file's tensors have one x, readers that follow the index the other.
  CHECK(contains(fails(R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})"),
                 "'x' is also in the file 'b.safetensors'"));
  CHECK(contains(fails(R"({"weight_map":{"y":"b.safetensors"}})"),
                 "'x' is also in the file 'b.safetensors'"));
  CHECK(fails(R"({"weight_map":{"x":"b.safetensors","y":"b.safetensors"}})").empty());
  CHECK(fails(R"({"weight_map":{"x":"a.safetensors"}})").empty());  // b is nobody's
}

TEST_CASE("a folder's files may be links to files elsewhere, as in the hub's cache") {
  const Folder folder;
  const Folder elsewhere;
  write_tensors(elsewhere / "blob", {{"x", full({2}, 3)}});
  std::filesystem::create_symlink(elsewhere / "blob", folder / "model.safetensors");
  CHECK(to_doubles(SafetensorsFolder(folder / "").read("x")) == std::vector<double>{3, 3});
}

TEST_CASE("weights that are not finite are refused by tensor and index, in every type") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const double bad : {std::nan(""), infinity, -infinity}) {
      INFO(name_of(dtype) << " " << bad);
      const Folder folder;
      // Beyond one block of the search, and on the last rank's part.
      const Tensor values = full({130, 70}, 1.5, dtype);
      const Tensor one = full({}, bad, dtype);
      std::memcpy(static_cast<std::byte*>(values.raw_data()) + (128 * 70 + 9) * size_of(dtype),
                  one.raw_data(), size_of(dtype));
      write_tensors(folder / "model.safetensors", {{"good", full({3}, 2, dtype)}, {"w", values}});
      const SafetensorsFolder source(folder / "");
      const auto mesh = DeviceMesh::make({"shard"}, {2});
      const SpecHandle spec = Spec::make(Layout::make(mesh, {Shard(0)}), {130, 70}, DType::f32);
      for (int rank = 0; rank < 2; ++rank) {
        set_current_rank(rank);
        StateDict state;
        state.tensors["good"] = zeros({3});
        state.tensors["w"] = make_distributed(zeros(local_shape(*spec)), spec);
        const std::string error = input_error([&] { load_weights(source, state); });
        INFO(error);
        CHECK(error.empty() == (rank == 0));  // each rank sees its own part
        CHECK((rank == 0 || contains(error, "tensor 'w': element [128, 9] is ")));
        CHECK((rank == 0 || contains(error, std::isnan(bad) ? " nan "
                                            : bad > 0       ? " inf "
                                                            : "-inf")));
        CHECK_FALSE(contains(error, "-nan"));
      }
      set_current_rank(0);
      CHECK(contains(input_error([&] { export_weights(source, folder / "out"); }),
                     "tensor 'w': element [128, 9]"));
      CHECK_FALSE(std::filesystem::exists(folder / "out/model.safetensors"));
    }
  }
}

TEST_CASE("a number that is too large for the type it is cast to is not finite") {
  const Folder folder;
  write_tensors(folder / "model.safetensors", {{"w", full({2}, 1e30, DType::f32)}});
  const SafetensorsFolder source(folder / "");
  CHECK(
      contains(input_error([&] { export_weights(source, folder / "out", {.dtype = DType::f16}); }),
               "element [0] is inf as f16"));
  CHECK(export_weights(source, folder / "out", {.dtype = DType::bf16}).size() == 1);
}

TEST_CASE("tied names may be stored twice with one value, not with two") {
  StateDict state;
  state.tensors["embed"] = empty({4, 3}, DType::f32, meta);
  state.tensors["head"] = state.tensors["embed"];
  const auto check = [&](const Tensor& embed, const Tensor& head) {
    const Folder folder;
    write_tensors(folder / "model.safetensors", {{"embed", embed}, {"head", head}});
    return input_error([&] { check_weights(SafetensorsFolder(folder / ""), state); });
  };
  const Tensor one = full({4, 3}, 0.5);
  const Tensor other = full({4, 3}, 0.5);
  CHECK(check(one, other).empty());
  CHECK(check(one, full({4, 3}, 0.5, DType::bf16)).empty());
  other.data<float>()[2 * 3 + 1] = 0.25F;
  const std::string error = check(one, other);
  INFO(error);
  CHECK(contains(error, "'embed' and 'head' are one tensor"));
  CHECK(contains(error, "first at [2, 1]: 0.5 and 0.25"));
  CHECK(contains(error, "tie_word_embeddings"));
}
