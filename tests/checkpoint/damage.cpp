// Checkpoints that were damaged, mixed up or changed on purpose, and values that must not be saved.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "index_hash.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

using namespace tessera;
using namespace checkpoint_test;
using index_hash::rehashed;
using index_hash::xxh3;

namespace {

using Json = nlohmann::json;

constexpr std::int64_t mib = 1 << 20;

/// A vector cut over the ranks, 0, 1, 2... from `first`; 4 bytes an element.
void save(const std::string& path, int ranks, double first = 0, std::int64_t elements = 64) {
  on_ranks(ranks, [&](int rank) {
    const SpecHandle spec = Spec::make(
        Layout::make(DeviceMesh::make({"shard"}, {ranks}), {Shard(0)}), {elements}, DType::f32);
    const std::int64_t rows = local_shape(*spec)[0];
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows; ++i) {
      values.push_back(static_cast<float>(first + static_cast<double>(rank * rows + i)));
    }
    StateDict state;
    state.tensors["x"] =
        make_distributed(from_values(std::span<const float>(values), {rows}), spec);
    state.scalars["progress.step"] = std::int64_t{7};
    state.scalars["lr"] = 0.5;
    save_checkpoint(path, state, R"({"config": {"a": 1}})");
  });
}

/// The error of reading all of it; "" when nothing is wrong.
std::string problem_of(const std::string& path) {
  return input_error([&] {
    const CheckpointReader reader(path);
    for (const auto& [name, info] : reader.tensors()) {
      static_cast<void>(reader.read(name));
    }
  });
}

std::string flipped(std::string bytes, std::size_t at) {
  bytes.at(at) = static_cast<char>(bytes[at] ^ 0x04);
  return bytes;
}

}  // namespace

TEST_CASE("any changed byte of any file is found before its values are used") {
  const Folder folder;
  save(folder / "c", 2);
  REQUIRE(problem_of(folder / "c").empty());
  for (const char* file : {"checkpoint.json", "rank-0.safetensors", "rank-1.safetensors"}) {
    const std::string name = std::string("c/") + file;
    const std::string good = read_file(folder / name);
    for (std::size_t at = 0; at < good.size(); ++at) {
      folder.write(name, flipped(good, at));
      const std::string problem = problem_of(folder / "c");
      INFO(file << ", byte " << at << ": " << problem);
      REQUIRE(contains(problem, file));
    }
    folder.write(name, good);
  }
  CHECK(problem_of(folder / "c").empty());
}

TEST_CASE("a header that says the same in other bytes is not the one that was saved") {
  const Folder folder;
  save(folder / "c", 1);
  const std::string name = "c/rank-0.safetensors";
  const std::string good = read_file(folder / name);
  const std::size_t begin = good.find('{');
  const std::size_t end = good.rfind('}') + 1;
  const auto header = nlohmann::ordered_json::parse(good.substr(begin, end - begin));
  nlohmann::ordered_json reversed;
  for (const auto& [key, fields] : header.items()) {
    for (auto field = fields.rbegin(); field != fields.rend(); ++field) {
      reversed[key][field.key()] = field.value();
    }
  }
  const std::string text = reversed.dump();
  REQUIRE(text.size() == end - begin);
  REQUIRE(text != header.dump());
  folder.write(name, good.substr(0, begin) + text + good.substr(end));
  CHECK(contains(problem_of(folder / "c"),
                 "rank-0.safetensors: the file's header is not the one that was saved"));
}

TEST_CASE("a file of another step of the same run is found, though all its sizes fit") {
  const Folder folder;
  save(folder / "step-2", 2, 0);
  save(folder / "step-6", 2, 100);
  const std::string old = read_file(folder / "step-2/rank-1.safetensors");
  REQUIRE(old.size() == read_file(folder / "step-6/rank-1.safetensors").size());
  folder.write("step-6/rank-1.safetensors", old);
  CHECK(contains(problem_of(folder / "step-6"),
                 "rank-1.safetensors: the file's header is not the one that was saved"));
  // And the first rank's file in the second's place.
  folder.write("step-2/rank-1.safetensors", read_file(folder / "step-2/rank-0.safetensors"));
  CHECK(contains(problem_of(folder / "step-2"), "rank-1.safetensors"));
}

TEST_CASE("a load compares the chunks that it reads, verify compares all") {
  const Folder folder;
  const std::int64_t elements = 3 * mib / 4 + 10;  // three chunks and 40 bytes
  save(folder / "c", 1, 0, elements);
  const std::string name = "c/rank-0.safetensors";
  const std::string good = read_file(folder / name);
  const std::size_t header = good.size() - static_cast<std::size_t>(elements) * 4;
  const auto damaged = [&](std::size_t byte) {
    folder.write(name, flipped(good, header + byte));
    return CheckpointReader(folder / "c");
  };
  const auto read = [&](const CheckpointReader& reader, std::int64_t first, std::int64_t count) {
    return input_error([&] {
      const Tensor part = zeros({count});
      reader.read("x", {{first}, {count}}, part);
      CHECK(to_doubles(part).back() == static_cast<double>(first + count - 1));
    });
  };
  CHECK(CheckpointReader(folder / "c").verify().empty());
  {
    const CheckpointReader reader = damaged(mib + 5);  // in the second chunk
    CHECK(read(reader, 0, mib / 4).empty());
    CHECK(read(reader, 2 * (mib / 4), mib / 4).empty());
    CHECK(contains(read(reader, mib / 4 - 1, 2), "(MiB 1)"));
    CHECK(contains(read(reader, mib / 2 - 1, 1), "(MiB 1)"));
    const std::vector<std::string> damages = reader.verify();
    REQUIRE(damages.size() == 1);
    CHECK(contains(damages[0], "tensor 'x': bytes of 'x@0' in rank-0.safetensors"));
  }
  const CheckpointReader reader = damaged(3 * mib + 39);  // the last byte
  CHECK(read(reader, 0, 3 * mib / 4).empty());
  CHECK(contains(read(reader, elements - 1, 1), "(MiB 3)"));
}

TEST_CASE("the hashes are XXH3-128 of each MiB, of each header and of the index") {
  const Folder folder;
  save(folder / "c", 1, 0, mib / 2);
  const Json index = Json::parse(read_file(folder / "c/checkpoint.json"));
  const std::string file = read_file(folder / "c/rank-0.safetensors");
  const std::size_t header = file.size() - 2 * mib;
  CHECK(index["files"]["rank-0.safetensors"]["header"] == xxh3(file.substr(0, header)));
  const Json entries = Json::parse(file.substr(8, header - 8));
  CHECK(entries["__metadata__"]["parts"] ==
        "0 0 524288 0 " + xxh3(file.substr(header, mib)) + xxh3(file.substr(header + mib)) + ";");
  const std::string text = read_file(folder / "c/checkpoint.json");
  const std::size_t line = text.find('\n') + 1;
  CHECK(index["hash"] == xxh3(text.substr(line)));
  folder.write("c/checkpoint.json", rehashed(index));
  CHECK(problem_of(folder / "c").empty());
  // The same entries in other bytes are not what was saved.
  folder.write("c/checkpoint.json", text.substr(0, line) + " " + text.substr(line));
  CHECK(contains(problem_of(folder / "c"), "the index was changed after it was saved"));
  folder.write("c/checkpoint.json", index.dump());
  CHECK(contains(problem_of(folder / "c"), "the index was changed after it was saved"));
}

TEST_CASE("an index of another format version says what to do") {
  const Folder folder;
  save(folder / "c", 1);
  Json index = Json::parse(read_file(folder / "c/checkpoint.json"));
  index["version"] = 3;
  index.erase("hash");
  folder.write("c/checkpoint.json", index.dump());
  const std::string problem = problem_of(folder / "c");
  CHECK(contains(problem, "another format version (expected 4 or 5, got 3)"));
  CHECK(contains(problem, "tessera checkpoint export"));
}

TEST_CASE("each field of the index that is absent or of a wrong type is an error that names it") {
  const Folder folder;
  save(folder / "c", 2);
  const Json good = Json::parse(read_file(folder / "c/checkpoint.json"));
  const Json wrong_values = {nullptr,
                             true,
                             -1,
                             2.5,
                             "word",
                             Json::array(),
                             Json::object(),
                             Json::array({-1}),
                             Json::array({nullptr})};
  int cases = 0;
  const std::function<void(const Json::json_pointer&)> mutate = [&](const Json::json_pointer& at) {
    const Json& value = good[at];
    for (const auto& [key, child] : value.items()) {
      const Json::json_pointer inner = value.is_array() ? at / std::stoul(key) : at / key;
      const std::string path = inner.to_string();
      if (child.is_structured() && path != "/meta/config") {  // what is in it is not this format's
        mutate(inner);
      }
      if (path == "/hash" || path.starts_with("/meta/")) {
        continue;
      }
      const auto problem = [&](const std::string& what, const Json& index) {
        folder.write("c/checkpoint.json", rehashed(index));
        const std::string text = problem_of(folder / "c");
        INFO(path << " " << what << ": " << text);
        CHECK(contains(text, "checkpoint.json"));
        // Entries of lists are named by the list.
        CHECK((value.is_array() || contains(text, key)));
        ++cases;
      };
      if (value.is_object() && !path.starts_with("/scalars/")) {
        Json index = good;
        index[at].erase(key);
        if (path != "/files/rank-0.safetensors" && path != "/files/rank-1.safetensors" &&
            !path.starts_with("/tensors/")) {
          problem("erased", index);
        }
      }
      for (const Json& other : wrong_values) {
        const bool a_scalar =
            path.starts_with("/scalars/") && (other.is_number() || other.is_string());
        const bool an_object = path == "/meta" || path == "/scalars" || path == "/files";
        if (a_scalar || (an_object && other.is_object())) {
          continue;
        }
        Json index = good;
        index[inner] = other;
        if (index["tensors"].empty() || index["tensors"].front().empty()) {
          continue;  // a checkpoint without tensors
        }
        problem("= " + other.dump(), index);
      }
    }
  };
  mutate(Json::json_pointer());
  CHECK(cases > 150);
}

TEST_CASE("an index whose numbers do not fit together is an error") {
  const Folder folder;
  save(folder / "c", 2);
  const Json good = Json::parse(read_file(folder / "c/checkpoint.json"));
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json index = good;
    change(index);
    folder.write("c/checkpoint.json", rehashed(index));
    return problem_of(folder / "c");
  };
  const auto tensor = [](Json& index) -> Json& { return index["tensors"].front()["x"]; };
  CHECK(contains(with([](Json& i) { i["files"]["../x"] = i["files"]["rank-0.safetensors"]; }),
                 "'../x'"));
  CHECK(contains(with([](Json& i) { i["files"]["rank-0.safetensors"]["bytes"] = 1; }),
                 "not the one"));
  CHECK(contains(with([](Json& i) { i["files"].erase("rank-1.safetensors"); }), "gaps"));
  for (const char* info : {"f99[64]", "f32", "f32[64", "[64]", "", "f32[-1]", "f32[64,]",
                           "f32[6 4]", "f32[1,1,1,1,1,1,1,1,1]", "f32[99999999999999999999]"}) {
    CHECK(contains(with([&](Json& i) { tensor(i) = info; }),
                   std::string("tensor 'x' is not a type and a shape (expected one such as "
                               "'f32[2,3]', got '") +
                       info + "'"));
  }
  CHECK(contains(with([&](Json& i) { tensor(i) = "i32[64]"; }),
                 "'x@0' (f32[32]) is not a part of a tensor"));
  CHECK(contains(with([&](Json& i) { i["tensors"]["plain"]["x"] = "f32[64]"; }),
                 "tensor 'x' has two layouts"));
  // Extents are compared with what is stored before anything of their size is made.
  CHECK(contains(with([&](Json& i) { tensor(i) = "f32[4611686018427387904,2]"; }), "2^63"));
  CHECK(contains(with([&](Json& i) { tensor(i) = "f32[1152921504606846976]"; }), "gaps"));
  CHECK(contains(with([&](Json& i) { tensor(i) = "f32[63]"; }), "'x@32' (f32[32]) is not"));
  const auto under = [](const std::string& layout) {
    return [layout](Json& i) {
      const Json tensors = i["tensors"].front();
      i["tensors"] = {{layout, tensors}};
    };
  };
  for (const char* layout :
       {"[Shard(0)] on mesh(shard=2) of ranks 0", "[Shard(1)] on mesh(shard=2)",
        "[Partial(sum)] on mesh(shard=2)", "[Shard(0), Replicate] on mesh(shard=2)",
        "[Shard(0)] on mesh(shard=99999999999)", "[Shard(0)]", "on mesh(shard=2)"}) {
    const std::string problem = with(under(layout));
    INFO(problem);
    CHECK(contains(problem, std::string("tensor 'x': layout '") + layout));
  }
  // A layout of other boxes than those that were written.
  for (const char* layout : {"plain", "[Shard(0)] on mesh(shard=2) of ranks 0 7"}) {
    CHECK(contains(with(under(layout)), "gaps"));
  }
  const std::string text = good.dump();
  folder.write("c/checkpoint.json", text.substr(0, text.size() / 2));
  CHECK(contains(problem_of(folder / "c"), "not JSON"));
}

TEST_CASE("a file whose header does not fit the index is an error") {
  const Folder folder;
  save(folder / "c", 2);
  const Json good = Json::parse(read_file(folder / "c/checkpoint.json"));
  const std::string file = read_file(folder / "c/rank-1.safetensors");
  const std::size_t data = file.size() - 32 * 4;
  const Json header = Json::parse(file.substr(8, data - 8));
  // The hashes of header and index are right: only what they say is not.
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json changed = header;
    change(changed);
    const std::string bytes = file_of(changed.dump(), 0);
    folder.write("c/rank-1.safetensors", bytes + file.substr(data));
    Json index = good;
    index["files"]["rank-1.safetensors"]["bytes"] = bytes.size() + 32 * 4;
    index["files"]["rank-1.safetensors"]["header"] = xxh3(bytes);
    folder.write("c/checkpoint.json", rehashed(index));
    return problem_of(folder / "c");
  };
  const std::string table = header["__metadata__"]["parts"];
  const std::string hashes = table.substr(table.size() - 33, 32);
  REQUIRE(table == "0 32 32 0 " + hashes + ";");
  const auto listed = [&](const std::string& key, const std::string& rows) {
    return with([&](Json& h) {
      const Json entry = h["x@32"];
      h.erase("x@32");
      h[key] = entry;
      h["__metadata__"]["parts"] = rows;
    });
  };
  CHECK(with([](Json&) {}).empty());
  CHECK(contains(listed("x@16", "0 16 32 0 " + hashes + ";"), "overlap"));
  // What other programs would read is what the table says.
  for (const char* key : {"x@33", "x@0,0", "x@", "x@-1", "x@32,", "x@3 2", "x", "y@32"}) {
    INFO(key);
    CHECK(contains(listed(key, table), "is not a part of a tensor of the checkpoint"));
  }
  CHECK(contains(with([](Json& h) { h["x@32"]["shape"] = {32, 1}; }),
                 "'x@32' (f32[32, 1]) is not a part of a tensor of the checkpoint"));
  CHECK(contains(with([](Json& h) {
                   h["x@32"]["shape"] = {31};
                   h["x@32"]["data_offsets"] = {0, 124};
                   h["x@63"] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {124, 128}}};
                 }),
                 "is not a part of a tensor of the checkpoint"));
  CHECK(contains(listed("x@32", ""), "is not a part of a tensor of the checkpoint"));
  CHECK(contains(listed("x@32", table + "0 40 8 0 " + hashes + ";"),
                 "does not have the parts of its table (expected 2, got 1)"));
  CHECK(contains(listed("x@32", "1 32 32 0 " + hashes + ";"),
                 "a part of tensor 1, and the checkpoint has only 1"));
  for (const char* row : {"0 33 32", "0 0,0 32", "0  32", "0 32 0", "0 32 33", "0 32 32,1"}) {
    INFO(row);
    CHECK(contains(listed("x@32", row + (" 0 " + hashes) + ";"),
                   "is not a part of a tensor of the checkpoint"));
  }
  for (const char* begin : {"4", "128", "18446744073709551615"}) {
    CHECK(contains(listed("x@32", "0 32 32 " + std::string(begin) + " " + hashes + ";"),
                   "the bytes of 'x@32' are not within the file"));
  }
  for (const char* row :
       {"0 32 32 0", "0 32 32 0 h", "0 32 32 -1 h;", "0 32 32 0x h;", "x 32 32 0 h;",
        "0 32, 32 0 h;", "0 32 32 99999999999999999999 h;", ";"}) {
    INFO(row);
    CHECK(contains(listed("x@32", row), "header does not begin with a table of its parts"));
  }
  for (const std::size_t digits : {0, 31, 33, 64}) {
    CHECK(contains(listed("x@32", "0 32 32 0 " + std::string(digits, '0') + ";"),
                   "'x@32' does not have 1 hashes"));
  }
  CHECK(contains(with([](Json& h) { h.erase("__metadata__"); }),
                 "header does not begin with a table of its parts"));
  CHECK(contains(listed("x@32", "0 32 32 0 " + std::string(32, '0') + ";"),
                 "are not those that were saved"));
}

TEST_CASE("a missing or cut file is named") {
  const Folder folder;
  save(folder / "c", 2);
  const std::string data = read_file(folder / "c/rank-1.safetensors");
  CHECK(contains(input_error([&] { CheckpointReader{folder / "none"}; }), "not a checkpoint"));
  std::filesystem::remove(folder / "c/rank-1.safetensors");
  CHECK(contains(problem_of(folder / "c"), "rank-1.safetensors"));
  for (const std::size_t bytes : {data.size() - 1, std::size_t{9}, std::size_t{0}}) {
    folder.write("c/rank-1.safetensors", data.substr(0, bytes));
    CHECK(contains(problem_of(folder / "c"), "rank-1.safetensors"));
  }
}

TEST_CASE("values that are not finite are not saved, and the older checkpoint stays") {
  const Folder folder;
  save(folder / "c", 2);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity(), 60000.0, -0.0}) {
      std::vector<std::string> errors(2);
      on_ranks(2, [&](int rank) {
        const SpecHandle spec =
            Spec::make(Layout::make(DeviceMesh::make({"shard"}, {2}), {Shard(0)}), {6}, dtype);
        StateDict state;
        state.tensors["x"] = make_distributed(full({3}, rank == 1 ? value : 1.0, dtype), spec);
        const std::string path = folder / (std::isfinite(value) ? "good" : "c");
        errors[static_cast<std::size_t>(rank)] = run_error([&] { save_checkpoint(path, state); });
        save_checkpoint(folder / "any", state, "{}", {.only_finite = false});
      });
      INFO(name_of(dtype) << " " << value << ": " << errors[0]);
      // Every rank throws, though only one holds such a value.
      CHECK(errors[0] == errors[1]);
      CHECK(contains(errors[0], "'x' holds values that are NaN or infinite") ==
            !std::isfinite(value));
    }
  }
  CHECK(problem_of(folder / "c").empty());
  CHECK(CheckpointReader(folder / "c").tensors().at("x").shape == Dims{64});
  CHECK(folder.names() == std::vector<std::string>{"any", "c", "good"});
}
