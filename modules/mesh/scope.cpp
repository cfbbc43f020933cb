module;
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <vector>
module tessera.mesh;

import tessera.base;

namespace tessera {

namespace {

/// The main thread's rank, which threads without one have too.
std::atomic<int> main_rank{0};

bool is_main_thread() { return gettid() == getpid(); }

struct ThreadState {
  int rank = -1;  // -1: none
  std::vector<DeviceMesh> meshes;
};

ThreadState& state() {
  thread_local ThreadState instance;
  return instance;
}

}  // namespace

int current_rank() {
  const int own = state().rank;
  return own >= 0 ? own : main_rank.load(std::memory_order_relaxed);
}

void set_current_rank(int rank) {
  if (rank < 0) {
    fail({.thing = "rank", .wrong = fmt::format("{} is below 0", rank)});
  }
  if (is_main_thread()) {
    main_rank.store(rank, std::memory_order_relaxed);
    state().rank = -1;  // what a forked process has from the thread that forked it
  } else {
    state().rank = rank;
  }
}

MeshScope::MeshScope(const DeviceMesh& mesh) : depth_(state().meshes.size()) {
  require(static_cast<bool>(mesh), "mesh scope: there is no mesh in it; make one first");
  state().meshes.push_back(mesh);
}

MeshScope::~MeshScope() { state().meshes.resize(depth_); }

DeviceMesh current_mesh() { return state().meshes.empty() ? DeviceMesh() : state().meshes.back(); }

DeviceMesh require_mesh(const char* what) {
  const DeviceMesh mesh = current_mesh();
  if (!mesh) {
    fail({.thing = what,
          .wrong = "no mesh is current",
          .expected = "a MeshScope around the call",
          .advice = "open one or give the mesh as an argument"});
  }
  return mesh;
}

}  // namespace tessera
