// Calls of the driver and of CUDA's libraries that may block: each of the plugins' tables, in ranks
// that are processes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "blas_api.hpp"
#include "catch.hpp"
#include "control.hpp"
#include "dnn_api.hpp"
#include "driver_api.hpp"
#include "errors.hpp"
#include "nccl_api.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

#include "emulated_ranks.hpp"

using namespace tessera;
using namespace tessera::testing;
using collective::World;

namespace {

/// The functions of a table that may block, by the types of its entries.
template <class Api>
void add_blocking(std::set<std::string>& names) {
  Api api = {};
  each_function(api, [&](auto& function, const char* name, auto...) {
    if (std::decay_t<decltype(function)>::what == cuda::Waits::watched) {
      names.insert(name);
    }
  });
}

std::set<std::string> blocking_functions() {
  std::set<std::string> names;
  add_blocking<cuda::DriverApi>(names);
  add_blocking<cuda::BlasApi>(names);
  add_blocking<cuda::DnnApi>(names);
  add_blocking<nccl::Api>(names);
  return names;
}

void multiply(Device device) {
  const Tensor x = full({8, 8}, 1, DType::f32, device);
  to_doubles(ops::matmul(x, x));
}

/// Causal attention, which cuDNN takes; by our own kernel it has much shared memory.
void attend(Device device) {
  const Tensor x = full({1, 16, 1, 16}, 1, DType::bf16, device);
  to_doubles(ops::causal_attention(x, x, x));
}

/// How a call is made on a device.
struct Use {
  std::function<void(World&, Device)> call;
  bool opens = false;   // before anything can be queued on the device
  bool of_all = false;  // the other rank calls it too
  int rank = 1;         // which does not return
  std::map<std::string, std::string> variables = {};
};

/// The driver's functions that a rank calls when it opens its device.
const Use opening = {.call = [](World&, Device device) { driver_of(device); }, .opens = true};

std::map<std::string, Use> uses() {
  const auto with_driver = [](auto body) {
    return Use{.call = [body](World&, Device device) { body(driver_of(device)); }};
  };
  const auto joins = [](std::map<std::string, std::string> variables, int rank = 1) {
    return Use{.call = [](World& world, Device device) { over_nccl(world, device); },
               .of_all = true,
               .rank = rank,
               .variables = std::move(variables)};
  };
  const Use products = {.call = [](World&, Device device) { multiply(device); }};
  const Use attention = {.call = [](World&, Device device) { attend(device); }};
  const auto retire = [](DeviceDriver& driver) {
    driver.free_queue(driver.make_queue());
    driver.make_queue();  // frees those whose work is done
  };
  return {
      {"cuInit", opening},
      {"cuDevicePrimaryCtxRetain", opening},
      {"cuModuleLoadData", opening},
      {"cuMemHostAlloc", with_driver([](DeviceDriver& d) { d.allocate_pinned(4096); })},
      {"cuStreamCreateWithPriority", with_driver([](DeviceDriver& d) { d.make_queue(); })},
      {"cuMemAlloc_v2", with_driver([](DeviceDriver& d) { d.allocate(4096); })},
      {"cuMemFree_v2", with_driver([](DeviceDriver& d) { d.free(d.allocate(4096), 4096); })},
      {"cuMemFreeHost",
       with_driver([](DeviceDriver& d) { d.free_pinned(d.allocate_pinned(4096), 4096); })},
      {"cuStreamDestroy_v2", with_driver(retire)},
      {"cuStreamSynchronize", with_driver([](DeviceDriver& d) {
         const double number = 1;
         d.copy(nullptr, d.allocate(4096), &number, sizeof(number), CopyKind::to_device);
       })},
      {"cuModuleGetFunction",
       {.call = [](World&, Device device) { ops::neg(full({3}, 1, DType::f32, device)); }}},
      {"cuFuncSetAttribute",
       {.call = [](World&, Device device) { attend(device); },
        .variables = {{"TESSERA_CUDA_ATTENTION", "own"}}}},
      {"cuGraphInstantiateWithFlags", with_driver([](DeviceDriver& d) {
         d.begin_graph(nullptr);
         d.end_graph(nullptr);
       })},
      {"cuGraphExecDestroy", with_driver([](DeviceDriver& d) {
         d.begin_graph(nullptr);
         d.free_graph(d.end_graph(nullptr));
         d.make_queue();  // destroys graphs whose last launch is done
       })},
      {"cublasLtCreate", products},
      {"cublasLtMatmulAlgoGetHeuristic", products},
      {"cublasLtMatmul", products},
      {"cudnnCreate", attention},
      {"cudnnBackendFinalize", attention},
      {"cudnnBackendGetAttribute", attention},
      {"cudnnBackendExecute", attention},
      {"cudnnBackendDestroyDescriptor",
       {.call =
            [](World&, Device device) {
              emulator_refuse_determinism(true);  // what was made of a plan is destroyed
              attend(device);
            }}},
      {"ncclGetUniqueId", joins({}, 0)},
      {"ncclCommInitRankConfig", joins({})},
      {"ncclMemAlloc", joins({{"TESSERA_NCCL_WINDOW", "1"}})},
      {"ncclMemFree", joins({{"TESSERA_NCCL_WINDOW", "1"}})},
      {"ncclCommDestroy", joins({})},
      {"ncclCommAbort",
       {.call =
            [](World& world, Device device) {
              over_nccl(world, device);
              if (world.rank() == 0) {
                fail("planted: rank 0 fails");
              }
              while (true) {
                synchronize(device);  // finds that the other one has failed
              }
            },
        .of_all = true}},
  };
}

/// Runs a use by two ranks, one of which does not return from the function, or gets a signal there.
Outcome interrupted(const std::string& function, const Use& use, int signal, double timeout) {
  std::map<std::string, std::string> variables = use.variables;
  variables["TESSERA_EMULATOR_MODES"] = "0";
  if (signal == 0) {
    variables["TESSERA_TIMEOUT"] = "1";  // of calls of the driver
  }
  return launched(
      2,
      [&](World& world) {
        if (world.rank() == use.rank) {
          setenv("TESSERA_EMULATOR_HANGS", (function + " 1 " + std::to_string(signal)).c_str(), 1);
        }
        if (world.rank() == use.rank || use.of_all) {
          use.call(world, gpu(world.rank()));
        }
        if (world.rank() != use.rank && signal != 0) {
          std::int32_t told = 0;
          world.everyone().receive(&told, 1, DType::i32, use.rank);
        }
      },
      variables, timeout);
}

/// Functions whose errors cannot be raised: they are told in the log.
bool gives_back(const std::string& function) {
  return contains(function, "Free") || function == "ncclCommDestroy";
}

/// What the error of a call names: a plan is made by several functions.
std::string name_in_errors(const std::string& function) {
  const bool makes_plan = function.starts_with("cudnnBackend") && function != "cudnnBackendExecute";
  return makes_plan ? "cudnnBackendFinalize" : function.substr(0, function.find_first_of("_W"));
}

/// One of each kind; the rest of them is in the long cases.
const std::set<std::string> some = {"cuInit",
                                    "cuDevicePrimaryCtxRetain",
                                    "cuMemAlloc_v2",
                                    "cuMemFree_v2",
                                    "cublasLtMatmulAlgoGetHeuristic",
                                    "cudnnBackendFinalize",
                                    "ncclCommInitRankConfig"};

void check_hangs(bool all) {
  for (const auto& [function, use] : uses()) {
    if (!all && !some.contains(function)) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = interrupted(function, use, 0, 60);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    INFO(function << " after " << took.count() << " s: " << outcome.errors);
    CHECK(took.count() < 20);
    if (function == "ncclCommAbort") {  // the run has failed before
      CHECK(outcome.code == 1);
      CHECK(contains(outcome.errors, "planted: rank 0 fails"));
      continue;
    }
    const std::string rank = std::to_string(use.rank);
    CHECK((outcome.code == 1 || (outcome.code == 0 && gives_back(function))));
    CHECK(contains(outcome.errors, "rank " + rank));
    CHECK(contains(outcome.errors, "device 'cuda:" + rank + "': "));
    CHECK(contains(outcome.errors, "has not returned within 1 s"));
    CHECK(contains(outcome.errors, name_in_errors(function)));
  }
}

void check_kills(bool all) {
  for (const auto& [function, use] : uses()) {
    if (function == "ncclCommAbort" || (!all && !some.contains(function))) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = interrupted(function, use, SIGKILL, 60);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    INFO(function << " after " << took.count() << " s: " << outcome.errors);
    CHECK(outcome.code == 1);
    CHECK(contains(outcome.errors, "rank " + std::to_string(use.rank)));
    CHECK(took.count() < 10);
  }
}

/// Some drivers let a call wait for all streams of the device, of which one waits for a rank that
/// is stopped or killed.
void check_waits(bool all, int signal) {
  for (const auto& [function, use] : uses()) {
    if (use.opens || use.of_all || (!all && !some.contains(function))) continue;
    const auto begin = std::chrono::steady_clock::now();
    std::map<std::string, std::string> variables = use.variables;
    variables["TESSERA_EMULATOR_KILL"] = "1 ncclAllGather 1 " + std::to_string(signal);
    variables["TESSERA_EMULATOR_BLOCKS"] = function;
    variables["TESSERA_EMULATOR_MODES"] = "0";
    const auto gather_and_use = [&used = use](World& world) {
      const Device device = gpu(world.rank());
      collective::Communicator& there = over_nccl(world, device);
      const Tensor x = full({300}, 1, DType::f32, device);
      const Tensor gathered = full({600}, 1, DType::f32, device);
      {
        const StreamScope scope(there.stream(device));
        there.all_gather(x.device_address(), gathered.device_address(), 300, DType::f32);
      }
      used.call(world, device);
      synchronize(device);
    };
    const Outcome outcome = launched(2, gather_and_use, variables, signal == SIGKILL ? 60 : 1);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    INFO(function << ", signal " << signal << " after " << took.count()
                  << " s: " << outcome.errors);
    CHECK(outcome.code == 1);
    CHECK(contains(outcome.errors, signal == SIGKILL ? "rank 1" : "rank 1 is stopped"));
    CHECK(took.count() < 20);  // the limit of stopped ranks is 1 s
  }
}

}  // namespace

TEST_CASE("each function of the tables that may block has a use here") {
  std::set<std::string> used;
  for (const auto& [name, use] : uses()) used.insert(name);
  CHECK(used == blocking_functions());
  CHECK(std::ranges::includes(used, some));
}

TEST_CASE("a call of a library that does not return ends at the time limit, with its name") {
  check_hangs(false);
}

TEST_CASE("a rank that is killed within a call of a library ends the others, which name it") {
  check_kills(false);
}

TEST_CASE("a rank that is stopped or killed is named in calls that wait for all streams") {
  check_waits(false, GENERATE(SIGSTOP, SIGKILL));
}

TEST_CASE("each call of a library that does not return ends at the time limit", "[.long]") {
  check_hangs(true);
}

TEST_CASE("a rank that is killed within any call of a library is named", "[.long]") {
  check_kills(true);
}

TEST_CASE("a rank that is stopped or killed is named in any call that waits", "[.long]") {
  check_waits(true, GENERATE(SIGSTOP, SIGKILL));
}
