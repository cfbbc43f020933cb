// What a save has brought to the disk when it gives the checkpoint its name. The functions of the
// system that it calls are defined here again, and note each call: a program's own definition comes
// before the C library's.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
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

std::mutex mutex;
bool noting = false;
std::vector<std::string> calls;  // "sync NAME", "write NAME", "rename NAME NAME"

void note(const std::string& call) {
  const std::lock_guard lock(mutex);
  if (noting) {
    calls.push_back(call);
  }
}

/// The last part of a path, a temporary folder's without what makes it unique.
std::string short_name(std::string path) {
  while (path.ends_with('/')) {
    path.pop_back();
  }
  const std::string name = std::filesystem::path(path).filename();
  const std::size_t at = name.find(".tmp-");
  return at == std::string::npos ? name : name.substr(0, at) + ".tmp";
}

std::string name_of_descriptor(int descriptor) {
  std::error_code ignored;
  return short_name(
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored));
}

}  // namespace

extern "C" {
int fsync(int descriptor) {
  const auto result = syscall(SYS_fsync, descriptor);
  note("sync " + name_of_descriptor(descriptor));
  return static_cast<int>(result);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t at) {
  note("write " + name_of_descriptor(descriptor));
  return syscall(SYS_pwrite64, descriptor, bytes, count, at);
}
int rename(const char* from, const char* to) noexcept {
  const auto result = syscall(SYS_rename, from, to);
  note("rename " + short_name(from) + " " + short_name(to) + (result == 0 ? "" : " refused"));
  return static_cast<int>(result);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  const auto result = syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  note("exchange " + short_name(from) + " " + short_name(to));
  return static_cast<int>(result);
}
}

namespace {

std::vector<std::string> calls_of_save(const std::string& path) {
  {
    const std::lock_guard lock(mutex);
    calls.clear();
    noting = true;
  }
  on_ranks(2, [&](int) {
    const SpecHandle spec =
        Spec::make(Layout::make(DeviceMesh::make({"shard"}, {2}), {Shard(0)}), {8}, DType::f32);
    StateDict state;
    state.tensors["x"] = make_distributed(full({4}, 1), spec);
    save_checkpoint(path, state);
  });
  const std::lock_guard lock(mutex);
  noting = false;
  return calls;
}

/// Where the call is among all; the test fails when it was not made.
std::ptrdiff_t place(const std::vector<std::string>& all, const std::string& call) {
  const auto at = std::ranges::find(all, call);
  INFO(call);
  REQUIRE(at != all.end());
  return at - all.begin();
}

void files_are_synced_before(const std::vector<std::string>& all, std::ptrdiff_t folder_sync) {
  for (const char* file : {"rank-0.safetensors", "rank-1.safetensors", "checkpoint.json"}) {
    const auto sync = place(all, std::string("sync ") + file);
    CHECK(sync < folder_sync);
    // Nothing is written to a file after it was brought to the disk.
    CHECK(std::find(all.begin() + sync, all.end(), std::string("write ") + file) == all.end());
    CHECK(place(all, std::string("write ") + file) < sync);
  }
}

}  // namespace

TEST_CASE("a save syncs files, then their folder, renames it, and syncs the parent folder") {
  const Folder folder;
  const std::string parent = short_name(folder / "");
  const auto first = calls_of_save(folder / "c");
  const auto folder_sync = place(first, "sync c.tmp");
  files_are_synced_before(first, folder_sync);
  CHECK(folder_sync < place(first, "rename c.tmp c"));
  CHECK(place(first, "rename c.tmp c") < place(first, "sync " + parent));

  const auto second = calls_of_save(folder / "c");  // takes the place of the first
  const auto again = place(second, "sync c.tmp");
  files_are_synced_before(second, again);
  CHECK(again < place(second, "exchange c.tmp c"));
  CHECK(place(second, "exchange c.tmp c") < place(second, "sync " + parent));
}
