// Files that another program truncates while they are read.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.ops;
import tessera.placement;
import tessera.tensor;

using namespace tessera;
using namespace checkpoint_test;

namespace {

constexpr std::int64_t rows = 512;
constexpr std::int64_t columns = 1024;

/// A file with the tensors "a" and "b" of this type.
void write_two(const std::string& path, DType dtype) {
  std::filesystem::remove(path);
  const TensorInfo info{dtype, Dims{rows, columns}};
  SafetensorsWriter writer(path, {{"a", info}, {"b", info}});
  for (const char* name : {"a", "b"}) {
    Tensor ones = full(info.shape, 1);
    Tensor values = empty(info.shape, dtype);
    ops::copy_(values, ones);
    writer.write(name, values);
  }
  writer.finish();
}

std::string truncated(const std::string& path, std::uintmax_t before, std::uintmax_t after) {
  return path + ": the file was truncated while it was read (expected " + std::to_string(before) +
         " bytes, got " + std::to_string(after) + ")";
}

}  // namespace

TEST_CASE("a safetensors file that is truncated while it is open is an error with its sizes") {
  const Folder folder;
  const std::string path = folder / "weights.safetensors";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 2}) {
      INFO(name_of(dtype) << ", " << threads << " threads");
      ops::set_threads(threads);
      write_two(path, dtype);
      const auto before = std::filesystem::file_size(path);
      const SafetensorsFile file(path);
      const Tensor whole = empty({rows, columns});
      const LocalPart everything{Dims{0, 0}, Dims{rows, columns}};
      file.read("a", everything, whole);
      std::filesystem::resize_file(path, before / 2);
      const std::string expected = truncated(path, before, before / 2);
      CHECK(contains(input_error([&] { file.read("b", everything, whole); }), expected));
      // From then on nothing of the file is trusted.
      const Tensor part = empty({rows, 8});
      CHECK(contains(input_error([&] { file.read("b", {Dims{0, 8}, Dims{rows, 8}}, part); }),
                     expected));
      CHECK(contains(input_error([&] { file.read("b"); }), expected));
    }
  }
  ops::set_threads(1);
  // The next mapping begins afresh.
  write_two(path, DType::f32);
  CHECK(to_doubles(SafetensorsFile(path).read("b")) == std::vector<double>(rows * columns, 1));
}

TEST_CASE("a checkpoint's file that is truncated while it is open is an error with its sizes") {
  const Folder folder;
  const std::string step = folder / "step";
  StateDict state;
  for (const char* name : {"a", "b"}) {
    state.tensors.emplace(name, full({rows, columns}, 1));
  }
  save_checkpoint(step, state, "{}");
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(step)) {
    if (entry.path().extension() == ".safetensors") {
      path = entry.path().string();
    }
  }
  const auto before = std::filesystem::file_size(path);
  const CheckpointReader reader(step);
  const CheckpointReader read_before(step);
  CHECK(read_before.verify().empty());
  std::filesystem::resize_file(path, before - 100'000);
  const std::string expected = truncated(path, before, before - 100'000);
  CHECK(contains(input_error([&] { load_state(reader, state); }), expected));
  // Its hashes were compared before, so that only the copy can find out.
  CHECK(contains(input_error([&] { load_state(read_before, state); }), expected));
  CHECK(contains(input_error([&] { static_cast<void>(CheckpointReader(step).verify()); }),
                 "expected " + std::to_string(before) + " bytes"));
}

TEST_CASE("a bus error elsewhere ends the process as before") {
  const Folder folder;
  const std::string path = folder / "weights.safetensors";
  write_two(path, DType::f32);
  const SafetensorsFile file(path);  // its handler is installed
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string other = folder / "other";
    std::ofstream(other) << std::string(8192, 'x');
    const int descriptor = ::open(other.c_str(), O_RDONLY);
    const auto* const bytes = static_cast<const volatile char*>(
        ::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, descriptor, 0));
    std::filesystem::resize_file(other, 0);
    ::_exit(bytes[5000] == 'x' ? 43 : 44);  // sanitizers have codes of their own
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  REQUIRE(WIFEXITED(status));  // its handler reports and exits
  CHECK(WEXITSTATUS(status) != 43);
  CHECK(WEXITSTATUS(status) != 44);
#else
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGBUS);
#endif
}
