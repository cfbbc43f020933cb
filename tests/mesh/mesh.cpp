#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.mesh;

using namespace tessera;
using Names = std::vector<std::string>;
using Ranks = std::vector<int>;

using tessera::testing::error_of;
namespace {

Ranks list(std::span<const int> ranks) { return {ranks.begin(), ranks.end()}; }

/// The meshes that the brute-force tests look at: plain, permuted, a subset of ranks.
std::vector<DeviceMesh> some_meshes() {
  return {DeviceMesh::make({"a"}, {1}), DeviceMesh::make({"a", "b"}, {3, 4}),
          DeviceMesh::make({"a", "b", "c"}, {2, 3, 2}),
          DeviceMesh::make({"a", "b", "c"}, {2, 1, 3}, {9, 4, 7, 1, 30, 2}),
          DeviceMesh::make({"a", "b", "c", "d"}, {2, 2, 3, 2})};
}

}  // namespace

TEST_CASE("a mesh of the same content is the same mesh") {
  const DeviceMesh a = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  CHECK(a == DeviceMesh::make({"shard", "tensor"}, {2, 2}, {0, 1, 2, 3}));
  CHECK(a.id() == DeviceMesh::make({"shard", "tensor"}, {2, 2}).id());
  CHECK_FALSE(a == DeviceMesh::make({"shard", "tensor"}, {2, 2}, {0, 2, 1, 3}));
  CHECK_FALSE(a == DeviceMesh::make({"shard", "t"}, {2, 2}));
  CHECK_FALSE(a == DeviceMesh::make({"shard", "tensor"}, {1, 4}));
  CHECK_FALSE(a.hash() == DeviceMesh::make({"shardtensor", "x"}, {2, 2}).hash());
  CHECK_FALSE(DeviceMesh());
  const std::unordered_set<DeviceMesh> set = {a, DeviceMesh::make({"shard", "tensor"}, {2, 2}),
                                              DeviceMesh::make({"tensor", "shard"}, {2, 2}),
                                              DeviceMesh()};
  CHECK(set.size() == 3);
}

TEST_CASE("ranks and coordinates are inverse and row-major") {
  for (const DeviceMesh& mesh : some_meshes()) {
    CAPTURE(to_string(mesh));
    int position = 0;
    for (const int rank : mesh.ranks()) {
      const std::optional<Dims> coordinates = mesh.coordinates_of(rank);
      REQUIRE(coordinates);
      CHECK(mesh.rank_at(*coordinates) == rank);
      int expected = 0;
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        expected = expected * mesh.axis_size(axis) + static_cast<int>((*coordinates)[axis]);
        CHECK(mesh.coordinate_of(rank, axis) == (*coordinates)[axis]);
      }
      CHECK(expected == position);
      CHECK(mesh.position_of(rank) == position++);
    }
    for (const int stranger : {-1, 1000}) {
      CHECK_FALSE(mesh.contains(stranger));
      CHECK_FALSE(mesh.coordinates_of(stranger));
      CHECK(mesh.coordinate_of(stranger, 0) == -1);
    }
  }
}

TEST_CASE("a group holds the ranks that differ only on its axes, in their order") {
  for (const DeviceMesh& mesh : some_meshes()) {
    for (const int rank : mesh.ranks()) {
      const Dims at = *mesh.coordinates_of(rank);
      for (int first = 0; first < mesh.ndim(); ++first) {
        Ranks along;
        for (int i = 0; i < mesh.axis_size(first); ++i) {
          Dims there = at;
          there[first] = i;
          along.push_back(mesh.rank_at(there));
        }
        CHECK(list(mesh.group(first, rank)) == along);
        CHECK(mesh.group(first, rank).data() == mesh.group(first, along.back()).data());
        for (int second = 0; second < mesh.ndim(); ++second) {
          if (second == first) {
            continue;
          }
          Ranks both;
          for (int i = 0; i < mesh.axis_size(first); ++i) {
            for (int j = 0; j < mesh.axis_size(second); ++j) {
              Dims there = at;
              there[first] = i;
              there[second] = j;
              both.push_back(mesh.rank_at(there));
            }
          }
          const Ranks axes = {first, second};
          CHECK(list(mesh.group(axes, rank)) == both);
          CHECK(mesh.group(axes, rank).data() == mesh.group(axes, both.back()).data());
        }
      }
    }
  }
}

TEST_CASE("a slice keeps the named axes, in the order named, through a rank") {
  const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard", "tensor"}, {2, 3, 2});
  CHECK(mesh.slice("tensor", 5) == DeviceMesh::make({"tensor"}, {2}, {4, 5}));
  CHECK(mesh.slice(Names{"replicate", "tensor"}, 5) ==
        DeviceMesh::make({"replicate", "tensor"}, {2, 2}, {4, 5, 10, 11}));
  CHECK(mesh.slice(Names{"tensor", "replicate"}, 5) ==
        DeviceMesh::make({"tensor", "replicate"}, {2, 2}, {4, 10, 5, 11}));
  CHECK(mesh.slice(Names{"replicate", "shard", "tensor"}, 7) == mesh);
  CHECK(mesh.at("shard", 2) == mesh.slice(Names{"replicate", "tensor"}, 5));
}

TEST_CASE("all sub-meshes of some axes part the mesh") {
  const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard", "tensor"}, {2, 3, 2});
  const std::vector<DeviceMesh> subs = mesh.sub_meshes(Names{"replicate", "tensor"});
  REQUIRE(subs.size() == 3);
  Ranks seen;
  for (const DeviceMesh& sub : subs) {
    for (const int rank : sub.ranks()) {
      seen.push_back(rank);
      CHECK(mesh.slice(Names{"replicate", "tensor"}, rank) == sub);
    }
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == list(mesh.ranks()));
}

TEST_CASE("flatten and unflatten undo each other") {
  const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard", "tensor"}, {2, 3, 2});
  const DeviceMesh flat = mesh.flatten(Names{"replicate", "shard"}, "data");
  CHECK(flat == DeviceMesh::make({"data", "tensor"}, {6, 2}));
  CHECK(flat.unflatten("data", {"replicate", "shard"}, {2, 3}) == mesh);
  // Axes that are not neighbours: the others keep their order.
  CHECK(mesh.flatten(Names{"replicate", "tensor"}, "both") ==
        DeviceMesh::make({"both", "shard"}, {4, 3}, {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
  CHECK(mesh.flatten(Names{"tensor", "replicate"}, "both").slice("both", 0) ==
        DeviceMesh::make({"both"}, {4}, {0, 6, 1, 7}));
  CHECK(mesh.rename("shard", "fsdp").axis_index("fsdp") == 1);
}

TEST_CASE("concatenate joins slices of different axes into their common mesh") {
  const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard", "tensor"}, {2, 3, 2});
  for (const int rank : mesh.ranks()) {
    const std::vector<DeviceMesh> parts = {mesh.slice("tensor", rank),
                                           mesh.slice("replicate", rank)};
    CHECK(mesh.concatenate(parts) == mesh.slice(Names{"tensor", "replicate"}, rank));
  }
  // A flattened part stays one axis.
  const std::vector<DeviceMesh> parts = {
      mesh.flatten(Names{"replicate", "shard"}, "data").slice("data", 0), mesh.slice("tensor", 0)};
  CHECK(mesh.concatenate(parts) == DeviceMesh::make({"data", "tensor"}, {6, 2}));
  const std::vector<DeviceMesh> same = {mesh.slice("tensor", 0), mesh.slice("tensor", 0)};
  CHECK_THROWS_AS(mesh.concatenate(same), Error);
  const std::vector<DeviceMesh> apart = {mesh.slice("tensor", 0), mesh.slice("shard", 7)};
  CHECK_THROWS_AS(mesh.concatenate(apart), Error);
}

TEST_CASE("a mesh that does not fit is an error that says how") {
  using Catch::Contains;
  const auto error = [](Names names, Dims shape, Ranks ranks = {}) {
    return error_of([&] { DeviceMesh::make(names, shape, ranks); });
  };
  CHECK_THAT(error({"a"}, {2, 2}), Contains("1 axis names for a shape of 2 sizes"));
  CHECK_THAT(error({}, {}), Contains("no axis"));
  CHECK_THAT(error({"a", ""}, {2, 2}), Contains("axis 1 is empty"));
  CHECK_THAT(error({"a", "a"}, {2, 2}), Contains("two axes are named 'a'"));
  CHECK_THAT(error({"a", "b"}, {2, 0}), Contains("axis 'b' has size 0"));
  CHECK_THAT(error({"a", "b"}, {2, 2}, {0, 1, 2}), Contains("needs 4 ranks (got 3)"));
  CHECK_THAT(error({"a"}, {3}, {5, 1, 5}), Contains("rank 5 appears twice"));
  CHECK_THAT(error({"a"}, {2}, {-1, 1}), Contains("rank -1 is below 0"));
  CHECK_THAT(error({"a", "b"}, {1LL << 40, 1LL << 40}), Contains("more than"));

  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  CHECK_THAT(error_of([&] { mesh.axis_index("tensr"); }), Contains("no axis 'tensr'") &&
                                                              Contains("shard and tensor") &&
                                                              Contains("did you mean 'tensor'"));
  CHECK_THAT(error_of([&] { mesh.rank_at({0, 2}); }), Contains("'tensor' is out of range"));
  CHECK_THAT(error_of([&] { mesh.group(0, 9); }), Contains("rank 9 is not in"));
  CHECK_THAT(error_of([&] { mesh.unflatten("shard", {"x", "y"}, {2, 2}); }),
             Contains("do not multiply"));
  CHECK_THROWS_AS(mesh.flatten(Names{"shard", "shard"}, "x"), Error);
  CHECK_THROWS_AS(mesh.slice("shard", 4), Error);
  CHECK_THROWS_AS(DeviceMesh::make({"a"}, {2}).at("a", 0), Error);
}

TEST_CASE("the current mesh and rank belong to a thread and nest") {
  const DeviceMesh outer = DeviceMesh::make({"a"}, {2});
  const DeviceMesh inner = DeviceMesh::make({"b"}, {2});
  CHECK_FALSE(current_mesh());
  CHECK_THROWS_AS(require_mesh("zeros"), Error);
  {
    const MeshScope a(outer);
    set_current_rank(1);
    {
      const MeshScope b(inner);
      CHECK(current_mesh() == inner);
      std::thread([] {
        CHECK_FALSE(current_mesh());
        CHECK(current_rank() == 1);  // the main thread's, until it sets its own
        set_current_rank(7);
        CHECK(current_rank() == 7);
      }).join();
    }
    CHECK(require_mesh("zeros") == outer);
    CHECK(current_rank() == 1);
  }
  CHECK_FALSE(current_mesh());
  set_current_rank(0);
}

TEST_CASE("threads that make the same mesh at once get the same mesh") {
  std::vector<DeviceMesh> made(8);
  std::vector<std::thread> threads;
  threads.reserve(made.size());
  for (DeviceMesh& mesh : made) {
    threads.emplace_back([&mesh] {
      for (int i = 1; i < 50; ++i) {
        mesh = DeviceMesh::make({"race", "x"}, {i, 2});
        const Ranks axes = {1, 0};
        mesh.group(axes, 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const DeviceMesh& mesh : made) {
    CHECK(mesh == made.front());
  }
}
